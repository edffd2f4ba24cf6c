#!/usr/bin/env bash
# Make the locked environment in the folder given. Installs nothing globally, except Java where root on Debian or Ubuntu has none.
set -euo pipefail
venv=$1

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
    echo "airflow-poison needs Python 3.11, 3.12 or 3.13; '$python' is $("$python" --version 2>&1 || echo 'not found'). Set PYTHON=/path/to/python3.11 and run make again." >&2
    exit 1
fi

if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ]; then java=$JAVA_HOME/bin/java; else java=$(command -v java || true); fi
major=$([ -n "$java" ] && "$java" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1 || true)
if [ -z "$major" ] || [ "$major" -lt 17 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Java 17 or newer is missing: installing the headless runtime (openjdk-17-jre-headless)"
        { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openjdk-17-jre-headless; } >/dev/null \
            || { echo "The Java runtime could not be installed. Install Java 17 or newer and set JAVA_HOME, then run make again." >&2; exit 1; }
    else
        echo "Spark needs Java 17 or newer (found: ${major:-none}). Install a Java 17 runtime (Debian: openjdk-17-jre-headless; macOS: temurin@17) or set JAVA_HOME, then run make again." >&2
        exit 1
    fi
fi

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    [ -x .tools/bin/uv ] || { echo "uv is missing: installing it into .tools"; "$python" -m venv .tools && .tools/bin/pip install --quiet 'uv>=0.5'; }
    uv=.tools/bin/uv
fi
[ -x "$venv/bin/python" ] || "$uv" venv --quiet --python "$python" "$venv"
echo "Installing the locked environment into $venv (about a minute the first time)"
VIRTUAL_ENV=$PWD/$venv "$uv" pip sync --quiet --require-hashes requirements.lock
VIRTUAL_ENV=$PWD/$venv "$uv" pip install --quiet --no-deps --no-build-isolation --editable .
