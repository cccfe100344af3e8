#!/usr/bin/env bash
# setup.sh [CHECKOUT]: prepares an EC2 instance with Ubuntu 24.04: driver, CUDA, NCCL, and Lockstep with its CUDA and NCCL plugins for the GPU of the
# instance. g4dn (T4), g5, g6, p4, p5 …: CUDA 13. p3 (V100, compute capability 7.0): CUDA 12.9 and the driver branch 580, the last ones that
# have it. p2 and g3 are older than 7.0: there, as on instances without GPUs, Lockstep is installed for the CPU. Run it again after the reboot that a
# new driver needs. Not run on an instance.
set -euo pipefail
checkout=${1:-$PWD}
die() { echo "setup: $*" >&2; exit 2; }
[[ -x $checkout/run ]] || die "$checkout is not a checkout of Lockstep"
[[ $(. /etc/os-release && echo "$ID $VERSION_ID") == "ubuntu 24.04" ]] || die "this script is for Ubuntu 24.04"
export DEBIAN_FRONTEND=noninteractive

token=$(curl -fsS -m 2 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token) || die "no instance metadata; this is not an EC2 instance"
kind=$(curl -fsS -m 2 -H "X-aws-ec2-metadata-token: $token" http://169.254.169.254/latest/meta-data/instance-type)
device=cpu cuda=13-0 packages=(libnccl-dev libnccl2 cudnn9-cuda-13 nvidia-open)
case $kind in
g3.* | g3s.* | p2.*) echo "setup: the GPU of a $kind is older than compute capability 7.0; Lockstep will use the CPU" >&2 ;;
p3.* | p3dn.*) device=cuda cuda=12-9 packages=('libnccl-dev=*+cuda12*' 'libnccl2=*+cuda12*' cuda-drivers-580) ;; # cuDNN is optional
*) if lspci | grep -qi nvidia; then device=cuda; fi ;;
esac

install_cuda() {
    local arch
    arch=$(uname -m)
    [[ $arch != aarch64 ]] || arch=sbsa
    if ! dpkg-query -W cuda-keyring >/dev/null 2>&1; then
        local folder # of this user only: nobody else can replace what sudo installs
        folder=$(mktemp -d)
        curl -fsSL -o "$folder/cuda-keyring.deb" "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/$arch/cuda-keyring_1.1-1_all.deb"
        sudo dpkg -i "$folder/cuda-keyring.deb"
        rm -r "$folder"
    fi
    sudo apt-get update
    sudo -E apt-get install -y "cuda-toolkit-$cuda" "${packages[@]}"
    nvidia-smi >/dev/null 2>&1 || die "the driver is installed; reboot (sudo reboot) and run this script again"
    LS_CUDA_ARCH=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sed 's/^90$/90a/' | sort -u | paste -sd ';')
    export LS_CUDA_ARCH PATH=/usr/local/cuda-${cuda/-/.}/bin:$PATH
}
[[ $device == cpu ]] || install_cuda
cd "$checkout"
./run package
sudo apt-get install -y ./build/package/lockstep_*.deb
echo "export EC2_INSTANCE_TYPE=$kind" | sudo tee /etc/profile.d/lockstep.sh >/dev/null # runs record it
lockstep doctor --device "$device"
