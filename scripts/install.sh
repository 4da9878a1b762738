#!/bin/sh
# Installs kvtier, and changes nothing else:
#
#   curl -fsSL https://github.com/kvtier/kvtier/releases/latest/download/install.sh | sh
#
# KVTIER_BIN is the folder of the program: /usr/local/bin for root, ~/.local/bin for others.
# KVTIER_FROM is the address of a release's files.
set -eu

from=${KVTIER_FROM:-https://github.com/kvtier/kvtier/releases/latest/download}
if [ "$(id -u)" = 0 ]; then bin=${KVTIER_BIN:-/usr/local/bin}; else bin=${KVTIER_BIN:-$HOME/.local/bin}; fi

fail() {
	echo "kvtier: $*" >&2
	exit 1
}

fetch() {
	if command -v curl >/dev/null; then
		curl -fsSL --retry 3 -o "$2" "$1"
	else
		wget -q -O "$2" "$1"
	fi || fail "cannot fetch $1"
}

case $(uname -s) in
Linux) os=linux ;;
Darwin) os=darwin ;;
*) fail "there is no program for $(uname -s)" ;;
esac
case $(uname -m) in
x86_64 | amd64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
*) fail "there is no program for $(uname -m)" ;;
esac
name=kvtier-$os-$arch

main() {
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	fetch "$from/$name.tar.gz" "$work/$name.tar.gz"
	fetch "$from/SHA256SUMS" "$work/sums"
	grep " $name.tar.gz\$" "$work/sums" >"$work/sum" || fail "$from/SHA256SUMS does not list $name.tar.gz"
	if command -v sha256sum >/dev/null; then check="sha256sum -c"; else check="shasum -a 256 -c"; fi
	(cd "$work" && $check sum >/dev/null 2>&1) || fail "$from/$name.tar.gz is damaged, or another file than SHA256SUMS says"
	tar -xzf "$work/$name.tar.gz" -C "$work"
	mkdir -p "$bin"
	install -m 755 "$work/$name/kvtier" "$bin/kvtier" || fail "cannot write $bin/kvtier; KVTIER_BIN names another folder"
	echo "$("$bin/kvtier" --version) is in $bin. To put it before your Ollama: sudo $bin/kvtier ollama install"
	case :$PATH: in *":$bin:"*) ;; *) echo "$bin is not in PATH." ;; esac
}

main
