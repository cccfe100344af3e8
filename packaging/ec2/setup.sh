#!/usr/bin/env bash
# setup.sh [CHECKOUT]: prepares an EC2 instance with NVIDIA GPUs and Ubuntu 24.04: driver, CUDA 13 and NCCL, Lockstep with its CUDA and NCCL
# plugins for the GPU of the instance. A g4dn.12xlarge has four T4 (compute capability 7.5). Idempotent: run it again after the reboot that a new driver needs.
set -euo pipefail
checkout=${1:-$PWD}
[[ -x $checkout/run ]] || { echo "setup: $checkout is not a checkout of Lockstep" >&2; exit 2; }
[[ $(. /etc/os-release && echo "$ID $VERSION_ID") == "ubuntu 24.04" ]] || { echo "setup: written for Ubuntu 24.04" >&2; exit 2; }
arch=$(uname -m)
[[ $arch == aarch64 ]] && arch=sbsa
export DEBIAN_FRONTEND=noninteractive

if ! dpkg-query -W cuda-keyring >/dev/null 2>&1; then
    curl -fsSL -o /tmp/cuda-keyring.deb "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/$arch/cuda-keyring_1.1-1_all.deb"
    sudo dpkg -i /tmp/cuda-keyring.deb
fi
sudo apt-get update
sudo -E apt-get install -y cuda-toolkit-13-0 libnccl-dev libnccl2 cudnn9-cuda-13 nvidia-open
if ! nvidia-smi >/dev/null 2>&1; then
    echo "setup: the driver is installed; reboot (sudo reboot) and run this script again"
    exit 0
fi
# 7.5 -> 75; several kinds of GPU: all of them
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -u | paste -sd ';')
cd "$checkout"
LS_CUDA_ARCH=$capability PATH=/usr/local/cuda/bin:$PATH ./run package
sudo apt-get install -y ./build/package/lockstep_*.deb
# Runs record the instance type (hardware.instance_type).
token=$(curl -fsS -m 2 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token || true)
kind=$(curl -fsS -m 2 -H "X-aws-ec2-metadata-token: $token" http://169.254.169.254/latest/meta-data/instance-type || echo unknown)
echo "export EC2_INSTANCE_TYPE=$kind" | sudo tee /etc/profile.d/lockstep.sh >/dev/null
lockstep doctor --device cuda
