#!/usr/bin/env bash
# Checks tidegs on a machine with a GPU: installs, builds, tests, trains; prints one JSON. See docs/gpu-check.md.
#
#   scripts/gpu_check.sh                  PYTHON=python3.12  WHEELS=wheels  OUT=results/gpu-check
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3} WHEELS=${WHEELS:-wheels} OUT=${OUT:-results/gpu-check} VENV=${VENV:-.venv-gpu}
BEGAN=$(date +%s)
mkdir -p "$OUT"
LOG=$OUT/install.log
: >"$LOG"
fail() {
    printf '{"ok": false, "error": "%s", "log": "%s"}\n' "$1" "$LOG"
    exit 1
}

command -v nvidia-smi >/dev/null || fail "no nvidia-smi: this machine has no NVIDIA driver"
DRIVER_CUDA=$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -1)
EXTRA=cuda12
[ "${DRIVER_CUDA:-0}" -ge 13 ] && EXTRA=cuda13

# A torch that sees the GPU is kept; otherwise one that fits the driver is installed.
SITE=()
if "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>>"$LOG"; then
    SITE=(--system-site-packages) EXTRA=
fi
PIP=(--quiet --disable-pip-version-check)
[ -d "$WHEELS" ] && PIP+=(--no-index --find-links "$WHEELS")
{
    "$PYTHON" -m venv "${SITE[@]}" "$VENV"
    # torch and its companions first, so that nothing below asks for another one.
    if [ -n "$EXTRA" ]; then "$VENV/bin/python" -m pip install "${PIP[@]}" "tidegs[$EXTRA] @ file://$PWD" setuptools wheel; fi
    "$VENV/bin/python" -m pip install "${PIP[@]}" "setuptools>=77" wheel ninja pytest hypothesis
    "$VENV/bin/python" -m pip install "${PIP[@]}" --no-build-isolation --editable .
} >>"$LOG" 2>&1 || fail "installation failed"

# Kernels compiled elsewhere for the same torch (scripts/build_gsplat.py) save the minutes of compiling them here.
if [ -f "$WHEELS/csrc.so" ]; then
    cp "$WHEELS/csrc.so" "$("$VENV/bin/python" -c 'import gsplat, os; print(os.path.dirname(gsplat.__file__))')/csrc.so"
fi
export PATH="$PWD/$VENV/bin:$PATH" PYTHONUNBUFFERED=1
exec "$VENV/bin/python" scripts/gpu_check.py --out "$OUT" --began "$BEGAN"
