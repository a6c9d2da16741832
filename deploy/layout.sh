# shellcheck shell=bash
# Where the files of an installation go; sourced by build_deb.sh and install.sh,
# in the root of the source tree.

# PROGRAM PREFIX ZSH: the program and what goes with it, below PREFIX. ZSH is
# the folder where zsh looks: vendor-completions for packages, else
# site-functions.
install_program() {
  local program="$1" prefix="$2" zsh="$3"
  install -D -m 755 --strip "${program}" "${prefix}/bin/coxswain"
  write_doc "${program}" man "${prefix}/share/man/man1/coxswain.1"
  write_doc "${program}" bash \
    "${prefix}/share/bash-completion/completions/coxswain"
  write_doc "${program}" zsh "${prefix}/share/zsh/${zsh}/_coxswain"
  write_doc "${program}" fish \
    "${prefix}/share/fish/vendor_completions.d/coxswain.fish"
  install -D -m 644 deploy/slurm/coxswain.sbatch \
    "${prefix}/share/doc/coxswain/examples/coxswain.sbatch"
  install -D -m 644 deploy/systemd/tls.conf \
    "${prefix}/share/doc/coxswain/examples/tls.conf"
  install -D -m 644 deploy/systemd/worker-tls.conf \
    "${prefix}/share/doc/coxswain/examples/worker-tls.conf"
  install -D -m 644 deploy/systemd/worker-example.env \
    "${prefix}/share/doc/coxswain/examples/worker-example.env"
}

# PROGRAM KIND FILE. Without the caller's settings, which help would show as
# defaults.
write_doc() {
  mkdir -p "$(dirname "$3")"
  env -i PATH="${PATH}" LC_ALL=C.UTF-8 \
    python3 deploy/cli_docs.py "$1" "$2" > "$3"
  chmod 644 "$3"
}

program_version() {
  sed -n 's/^inline constexpr char kVersion\[\] = "\(.*\)";$/\1/p' \
    base/version.h
}
