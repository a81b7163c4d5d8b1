#!/usr/bin/env bash
# Installs the packages of the system that the tests need and a bare Debian or Ubuntu may lack; names
# all of them in one line where it may not. Called by `make test`, .ci/run, and with --slow by
# `make test-slow`, whose tests need more.
set -euo pipefail

missing=()
python_with_venv() {
	local python
	for python in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
		"$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
			2>/dev/null && return
	done
	return 1
}
library() { PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -F "$1" >/dev/null; }  # not -q: pipefail
command -v git >/dev/null || missing+=(git)
command -v make >/dev/null || missing+=(make)
command -v ps >/dev/null || missing+=(procps)
library libnuma.so.1 || missing+=(libnuma1)   # vLLM
library libgomp.so.1 || missing+=(libgomp1)   # vLLM
library libstdc++.so.6 || missing+=(libstdc++6)
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v setpriv >/dev/null || missing+=(util-linux)
library libseccomp.so.2 || missing+=(libseccomp2)
[ -x .venv/bin/python ] || python_with_venv || missing+=(python3 python3-venv)
if [ "${1:-}" = --slow ]; then
	PATH=$PATH:/usr/sbin command -v debootstrap >/dev/null || missing+=(debootstrap)
	command -v chromium >/dev/null || missing+=(chromium)
	compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
fi
((${#missing[@]})) || exit 0

line="apt-get install ${missing[*]}"
as_root=()
((EUID == 0)) || as_root=(sudo -n)
if ! command -v apt-get >/dev/null; then
	echo "Missing packages of the system, by Debian's names: ${missing[*]}. Install yours of them." >&2
	exit 1
elif ((${#as_root[@]})) && ! "${as_root[@]}" true 2>/dev/null; then
	echo "Missing packages of the system. Install them with: sudo $line" >&2
	exit 1
fi
echo "Installing missing packages of the system: $line"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
	apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null
