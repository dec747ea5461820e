#!/bin/sh
# Runs once, while the image is built.
set -eu
cd "$(dirname "$0")"

# For all programs of the sandbox, not for the kernels alone: what runs in a cell runs in a script, too.
if ! pip install --quiet --root-user-action=ignore --no-cache-dir --no-deps --no-compile --require-hashes --only-binary :all: \
    -r requirements.txt; then
    echo "gamebox: the libraries of the code interpreter could not be installed: no package index answered" >&2
    exit 1
fi
site=$(python3 -c 'import numpy, pathlib; print(pathlib.Path(numpy.__file__).parents[1])')
# Tests of the libraries are a tenth of their size, and nobody runs them here.
find "$site" -type d -name tests -prune -exec rm -rf {} +
# The system is read-only in a sandbox: without these, each kernel would compile all that it imports.
python3 -m compileall -q "$site"
# The list of fonts, which matplotlib makes when it is first imported.
MPLCONFIGDIR=/opt/gamebox-interpreter-fonts python3 -c 'import matplotlib.font_manager'
# A context may have any folder that can be read, as clients expect; there is nothing in this one.
chmod 755 /root
