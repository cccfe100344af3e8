#!/usr/bin/env bash
# check.sh [FOLDER]: installs the Debian package of FOLDER (build/package) on a bare Debian 12, uses it, removes it and compares the
# files before and after; then runs the tar file in a folder that has nothing but glibc. Needs root, debootstrap and a Debian mirror
# (MIRROR; BARE=FOLDER uses a system that debootstrap made before). Exit code 77: it could not be checked here, and the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
[[ $EUID -eq 0 ]] || skip "needs root (chroot)"
if [[ ! ${LS_CHECK_MOUNTS:-} ]]; then # mounts end with this process
    unshare --mount true 2>/dev/null || skip "this machine allows no mounts"
    LS_CHECK_MOUNTS=1 exec unshare --mount "$0" "$@"
fi

from=$(cd "${1:-build/package}" && pwd)
debs=("$from"/lockstep_*.deb)
[[ -e ${debs[0]} ]] || fail "$from has no lockstep_*.deb; run ./run package"
(cd "$from" && sha256sum --quiet -c SHA256SUMS) || fail "SHA256SUMS does not match"
work=$(mktemp -d)
trap 'umount -l "$work"/*/{dev/shm,dev,proc} 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
root=$work/debian

in_root() { chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LC_ALL=C DEBIAN_FRONTEND=noninteractive LS_DEVICE=cpu "$@"; }
apt() { in_root apt-get -qq -o Dpkg::Use-Pty=0 "$@" >"$work/apt.log" 2>&1 || { tail -n 20 "$work/apt.log"; fail "apt-get $*"; }; }
# Files, without the records of dpkg, apt and man-db about themselves.
files() { in_root find / -xdev \( -path /proc -o -path /dev -o -path /tmp -o -path /root -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \) -prune -o -print | sort; }

make_system() {
    if [[ ${BARE:-} ]]; then
        cp -a --one-file-system "$BARE" "$root"
    else
        command -v debootstrap >/dev/null || skip "debootstrap is not installed"
        debootstrap --variant=minbase bookworm "$root" "${MIRROR:-http://deb.debian.org/debian}" >"$work/log" 2>&1 || skip "debootstrap: $(tail -n 1 "$work/log")"
    fi
    cp /etc/resolv.conf "$root/etc/"
    apt-config dump | grep -i '^acquire::.*proxy' >"$root/etc/apt/apt.conf.d/90proxy" || true
    mount -t proc proc "$root/proc"
    mount --bind /dev "$root/dev"
    apt update
    apt install -y man-db bash-completion ca-certificates # apt recommends the last one, so that autoremove would keep it
}

# lockstep runs as a user would: prepare, train on two workers, generate.
small_run() { # small_run COMMAND...: the command that runs lockstep; /root is the folder of the files
    "$@" prepare /root/text.txt --out /root/data --tokenizer train --vocab-size 300 --quiet
    "$@" train --data /root/data --model tiny --seq_length 32 --micro_batch_size_per_gpu 2 --max_steps 4 -n 2 --checkpoint_path /root/run >"$work/train.log" 2>&1 || { cat "$work/train.log"; return 1; }
    "$@" generate --checkpoint /root/run --prompt "the cat" --max-new-tokens 8
}
text() { for i in {1..400}; do echo "the cat number $i saw $((i * i)) birds on the wall and went away"; done; }

check_man() {
    local page
    in_root man lockstep-train >"$work/man" 2>"$work/err" || fail "man lockstep-train: $(cat "$work/err")"
    grep -q -- '--deepspeed_config' "$work/man" || fail "man lockstep-train lacks --deepspeed_config"
    while read -r page; do
        in_root man --warnings "$page" >/dev/null 2>"$work/err" || fail "man $page"
        [[ ! -s $work/err ]] || fail "man $page: $(head -n 3 "$work/err")"
    done < <(in_root sh -c 'cd /usr/share/man/man1 && ls lockstep*.1.gz' | sed 's/\.1\.gz$//')
}

check_completion() {
    # shellcheck disable=SC2016 # the bash inside expands it
    in_root bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader lockstep
        COMP_WORDS=(lockstep train --precision bf); COMP_CWORD=3; _lockstep; [[ ${COMPREPLY[*]} == bf16 ]] || exit 1
        COMP_WORDS=(lockstep ben); COMP_CWORD=1; _lockstep; [[ ${COMPREPLY[*]} == bench ]]' || fail "bash completion"
}

check_deb() {
    local t0=$SECONDS
    make_system
    files >"$work/before"
    echo "bare Debian $(cat "$root/etc/debian_version"): $(wc -l <"$work/before") files, $((SECONDS - t0)) s"
    cp "${debs[0]}" "$root/root/"
    apt install -y "/root/$(basename "${debs[0]}")"
    # shellcheck disable=SC2016 # dpkg-query expands it
    in_root dpkg-query -W -f='installed ${Package} ${Version}, ${Installed-Size} KiB\n' lockstep
    check_man
    check_completion
    in_root lockstep doctor >"$work/doctor" || { cat "$work/doctor"; fail "lockstep doctor"; }
    text >"$root/root/text.txt"
    small_run in_root lockstep || fail "prepare, train, generate"
    in_root test -f /usr/share/lockstep/scripts/slurm/train_1node.sbatch || fail "no Slurm templates"
    apt purge -y lockstep
    apt autoremove --purge -y
    files >"$work/after"
    diff "$work/before" "$work/after" || fail "files are left, or were removed (< before, > after)"
    if in_root dpkg-query -W lockstep >/dev/null 2>&1; then fail "dpkg still knows the package"; fi
    echo "package: installed, used and removed; no file is left"
}

# The tar file where nothing else exists: no shell, no /etc; glibc's libraries only.
check_tar() {
    local file empty=$work/empty lib
    file=$(ls "$from"/lockstep-*-linux-"$(uname -m)".tar.gz) || fail "no tar file in $from"
    mkdir -p "$empty"/{root,tmp,proc,dev,opt}
    tar -C "$empty/opt" -xzf "$file" --strip-components=1
    for lib in ld-linux-aarch64.so.1 ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2; do
        find "$root"/lib*/ "$root"/usr/lib*/ -name "$lib" -print -quit 2>/dev/null | while read -r path; do
            path=${path#"$root"}
            install -D "$root/$path" "$empty/$path"
        done
    done
    local loader
    loader=$(readelf -l "$empty/opt/bin/lockstep" | sed -n 's/.*interpreter: \(.*\)\]/\1/p')
    [[ -e $empty$loader ]] || install -D "$root/$(readlink -f "$root$loader" | sed "s|^$root||")" "$empty$loader"
    mount -t proc proc "$empty/proc"
    mount --bind /dev "$empty/dev"
    text >"$empty/root/text.txt"
    in_empty() { env -i PATH="$PATH" HOME=/root LS_DEVICE=cpu chroot "$empty" /opt/bin/lockstep "$@"; }
    small_run in_empty || fail "the tar file's program"
    in_empty doctor >"$work/doctor" || { cat "$work/doctor"; fail "doctor of the tar file"; }
    echo "tar file: runs where only glibc exists"
}

check_deb
check_tar
