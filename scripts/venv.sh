# What clients, torture and soak share, to be sourced after `here` is set: Python packages, a folder that
# is gone at the end, and a way to run a program that is stopped with the script.
# CLIENTS_VENV is where the packages are kept from run to run.
venv=${CLIENTS_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-clients-venv}
packages=(grpcio==1.85.1 websockets==17.4 h2==4.4.1 hpack==4.2.0)

# need COMMAND PACKAGE ...: installs what is missing, or says what to install.
need() {
    local missing=()
    while [ $# -gt 0 ]; do
        command -v "$1" >/dev/null || missing+=("$2")
        shift 2
    done
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "this needs ${missing[*]}; install them, for example: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install -y --no-install-recommends "${missing[@]}"
}

# What was installed is written beside it, so that a change of versions installs anew.
install_packages() {
    [ "$(cat "$venv/packages" 2>/dev/null)" != "${packages[*]}" ] || return 0
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
    echo "${packages[*]}" >"$venv/packages"
}

stop() {
    [ -z "${program:-}" ] || { kill "$program" && wait "$program"; } 2>/dev/null || true
    rm -rf "$folder"
}

# run_python PROGRAM BINARY ARGUMENT ...: in the background, so that a signal is acted on at once.
run_python() {
    folder=$(mktemp -d)
    trap stop EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # A descriptor for each connection, and some to spare, as far as that is allowed.
    ulimit -n 8192 2>/dev/null || true
    PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$here/$1" "$2" "$folder" "${@:3}" &
    program=$!
    wait "$program"
}
