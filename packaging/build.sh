#!/usr/bin/env bash
# build.sh BUILD OUT: the Debian package and the self-contained tar file of the program in BUILD, with SHA256SUMS, in OUT. `./run package`
# builds the program and calls this. The same commit gives the same files: times come from the commit (SOURCE_DATE_EPOCH).
#
#   lockstep_VERSION-1_ARCH.deb           program, plugins, man pages, completions, Slurm templates, documents (Debian 12 and later)
#   lockstep-VERSION-linux-MACHINE.tar.gz the same, with every library but glibc's, for any distribution
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1 out=$2
mkdir -p "$out"
out=$(cd "$out" && pwd)
version=$("$build/lockstep" --version | awk '{print $2}')
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '%s\n' "$*" >&2; }
die() { say "package: $*"; exit 1; }

# stage PREFIX_FOLDER: all that both packages have.
stage() {
    local to=$1 share=$1/share doc=$1/share/doc/lockstep date
    date=$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)
    cmake --install "$build" --prefix "$to" --strip >/dev/null
    python3 packaging/pages.py "$(cd "$build" && pwd)/lockstep" "$work/pages" --date "$date"
    install -d "$share/man/man1"
    local page
    for page in "$work"/pages/man1/*.1; do gzip -9nc "$page" >"$share/man/man1/$(basename "$page").gz"; done
    install -Dm644 "$work/pages/bash/lockstep" "$share/bash-completion/completions/lockstep"
    install -Dm644 "$work/pages/zsh/_lockstep" "$share/zsh/vendor-completions/_lockstep"
    install -Dm644 "$work/pages/fish/lockstep.fish" "$share/fish/vendor_completions.d/lockstep.fish"
    install -d "$share/lockstep/scripts/slurm" "$doc"
    install -m644 scripts/slurm/*.sh scripts/slurm/*.sbatch "$share/lockstep/scripts/slurm"
    local f
    while read -r f; do install -Dm644 "$f" "$doc/$f"; done < <(documents)
    grep -rlIZ -m 1 '^#!' "$doc/examples" "$share/lockstep/scripts" | xargs -0 -r chmod 755
}

# The tree's documents, in their folders, so that links between them work.
documents() {
    printf '%s\n' README.md share/README.md
    if git rev-parse --git-dir >/dev/null 2>&1; then git ls-files docs examples packaging; else find docs examples packaging -type f; fi |
        grep -v '^packaging/[^/]*$'
}

pack() { # pack TAR_FILE FOLDER...: in the current folder, the same bytes each time
    local file=$1
    shift
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c -- "$@" | gzip -9n >"$file"
}

# ---- Debian ----

# depends FIELD FILE...: what dpkg-shlibdeps finds, as the value of one field.
depends() {
    local field=$1
    shift
    mkdir -p "$work/shlibs/debian"
    printf 'Source: lockstep\n\nPackage: lockstep\nArchitecture: any\n' >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps --ignore-missing-info -O -d"$field" -e"$1" "${@:2}" 2>"$work/shlibs/log") |
        sed -n "s/^shlibs:$field=//p"
}

maintainer() {
    local name=${DEBFULLNAME:-$(git config user.name || true)} mail=${DEBEMAIL:-$(git config user.email || true)}
    [[ $name && $mail ]] && printf '%s <%s>\n' "$name" "$mail" || git log -1 --format='%an <%ae>' 2>/dev/null ||
        die "set DEBFULLNAME and DEBEMAIL: a Debian package names its maintainer"
}

deb() {
    local root=$work/deb arch plugins suggests='' doc=$work/deb/usr/share/doc/lockstep by
    arch=$(dpkg --print-architecture)
    by=$(maintainer)
    stage "$root/usr"
    rm -f "$doc/LICENSE"
    { # the licence, in Debian's format
        printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: lockstep\n\nFiles: *\n'
        printf 'Copyright: %s\nLicense: MIT\n' "$(sed -n 's/^Copyright (c) //p' LICENSE)"
        sed '1,/^Copyright/d' LICENSE | sed '1{/^$/d}' | sed 's/^$/./; s/^/ /'
        printf '\nFiles: share/shakespeare.txt.zst\nCopyright: none; by William Shakespeare (1564-1616)\nLicense: public-domain\n The text of the plays is in the public domain.\n'
    } >"$doc/copyright"
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
    { # the version's notes, one entry each, without headings and addresses of links
        printf 'lockstep (%s-1) unstable; urgency=medium\n\n' "$version"
        tools/release notes "$version" | sed -nE 's/\[([^]]*)\]\([^)]*\)/\1/g; s/^- //p' |
            while IFS= read -r entry; do fold -sw 74 <<<"$entry" | sed -E 's/ +$//; 1s/^/  * /; 2,$s/^/    /'; done
        printf '\n -- %s  %s\n' "$by" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")"
    } | gzip -9n >"$doc/changelog.Debian.gz"
    chmod 644 "$doc/copyright" "$doc"/changelog*.gz
    if readelf -d "$root"/usr/lib/lockstep/*.so 2>/dev/null | grep -q 'RUNPATH.*/cuda/'; then
        mkdir -p "$root/usr/share/lintian/overrides"
        printf '%s\n' "# NVIDIA's packages install CUDA and NCCL there" 'lockstep: custom-library-search-path RUNPATH /usr/local/cuda*' \
            >"$root/usr/share/lintian/overrides/lockstep"
    fi
    plugins=("$root"/usr/lib/lockstep/*.so)
    # A plugin's libraries are suggested: the program runs without them and reports what is missing when the plugin is asked for.
    [[ ! -e ${plugins[0]} ]] || suggests=$(depends Suggests "${plugins[@]}")
    local needs
    needs=$(depends Depends "$root/usr/bin/lockstep")
    [[ $needs ]] || { cat "$work/shlibs/log" >&2; die "dpkg-shlibdeps found no dependencies"; }
    suggests=$(without "$suggests" "$needs")
    mkdir -p "$root/DEBIAN"
    cat >"$root/DEBIAN/control" <<EOF
Package: lockstep
Version: $version-1
Architecture: $arch
Maintainer: $by
Installed-Size: $(du -k -s --apparent-size "$root/usr" | cut -f1)
Depends: $needs
Recommends: ca-certificates
Suggests: ${suggests:+$suggests, }librsvg2-bin, fonts-dejavu-core, openmpi-bin
Section: science
Priority: optional
Description: train GPT-2 under data, tensor and pipeline parallelism
 Lockstep trains GPT-2 models on CPUs and GPUs, on one machine and on
 clusters, and produces the same bits on any number of workers. It prepares
 data, trains, evaluates, generates text, exchanges models with Hugging Face,
 compares parallel strategies and predicts their speed and memory.
 .
 The MPI, CUDA and NCCL parts are plugins, loaded when a run asks for them;
 \`lockstep doctor\` lists which of them work on this machine.
EOF
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    find "$root" -type d -exec chmod 755 {} +
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/lockstep_$version-1_$arch.deb" >/dev/null
}

# without LIST LIST: the members of the first list of packages that the second does not name.
without() {
    tr ',' '\n' <<<"$1" | sed 's/^ *//' | awk -v other="$2" 'BEGIN { n = split(other, o, / *, */); for (i = 1; i <= n; i++) { split(o[i], w, " "); has[w[1]] = 1 } }
        $1 && !($1 in has) { printf "%s%s", sep, $0; sep = ", " }'
}

# ---- any distribution ----

# Libraries of the C library itself must fit the machine's loader and stay out.
glibc_library() { [[ $1 =~ ^(ld-linux.*|linux-vdso|libc|libm|libpthread|libdl|librt|libresolv|libutil|libnss_.*|libanl)\.so ]]; }

tarball() {
    local name=lockstep-$version root lib need path pkg
    root=$work/tar/$name
    lib=$root/lib/lockstep
    stage "$root"
    install -m644 README.md LICENSE CHANGELOG.md "$root"
    mkdir -p "$lib" "$root/share/doc/lockstep/licenses"
    while read -r need _ path _; do
        if glibc_library "$need" || [[ $path != /* ]]; then continue; fi
        install -m644 "$path" "$lib/$need"
        patchelf --set-rpath "\$ORIGIN" "$lib/$need"
        pkg=$(dpkg-query -S "*/$(realpath "$path" | grep -o "[^/]*/[^/]*$")" 2>/dev/null | sed -n '1s/:.*//p' || true)
        [[ ! $pkg || ! -e /usr/share/doc/$pkg/copyright ]] || install -m644 "/usr/share/doc/$pkg/copyright" "$root/share/doc/lockstep/licenses/$pkg"
    done < <(ldd "$root/bin/lockstep")
    patchelf --set-rpath "\$ORIGIN/../lib/lockstep" "$root/bin/lockstep"
    local glibc
    glibc=$(find "$root/bin" "$lib" -type f -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
    cat >"$root/INSTALL" <<EOF
Lockstep $version for Linux on $(uname -m). Needs glibc ${glibc#GLIBC_} or later and nothing else; the other libraries are in lib/lockstep.

    bin/lockstep doctor                      # runs from any folder
    cp -r bin lib share /usr/local/          # or install it

The MPI, CUDA and NCCL plugins in lib/lockstep use the libraries of this machine. \`lockstep data fetch\` reads certificates from
/etc/ssl/certs/ca-certificates.crt.
EOF
    (cd "$work/tar" && pack "$out/$name-linux-$(uname -m).tar.gz" "$name")
}

if command -v dpkg-shlibdeps >/dev/null; then deb; else say "dpkg-dev is not installed: no Debian package is made"; fi
if command -v patchelf >/dev/null; then tarball; else say "patchelf is not installed: no tar file of the program is made"; fi
git archive --format=tar.gz --prefix="lockstep-$version/" -o "$out/lockstep-$version.tar.gz" HEAD 2>/dev/null || say "not a git checkout: no source archive is made"
cd "$out"
sha256sum -- *.deb *.tar.gz 2>/dev/null | tee SHA256SUMS
