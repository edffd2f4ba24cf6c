#!/usr/bin/env bash
# Install the wheel into the oldest and the newest environment that pyproject.toml declares, below .compat, and try it there: every module is imported,
# the provider's description is checked against that Airflow, DAGs run with Spark, and every type goes
# through a transformation and a send. An environment that cannot be made is a failure.
set -euo pipefail

AS_OF=2026-11-20                    # nothing published later is installed: a run can be repeated
OLDEST_PYTHON=3.11 NEWEST_PYTHON=3.13
OLDEST_PINS=(fastapi==0.136.0)      # Airflow 3.2.0 does not say that later ones break it
TESTS=(
    tests/compat tests/airflow/test_provider.py tests/airflow/test_cycle.py
    tests/spark/test_bodies.py::test_a_body_is_in_a_transformation_what_the_page_says  # every type of Spark, into an output
    tests/spark/test_sends.py::test_values_of_every_type_are_in_the_body  # and out of a DataFrame
    --deselect "tests/airflow/test_provider.py::test_every_module_that_is_named_can_be_imported[operators]"  # tests/compat knows which ones need the extra "submit"
)
PANDAS_3="ignore:PySpark does not yet fully support pandas:FutureWarning"
OLDEST_TESTS=(  # 3.2.0 does not give callbacks the exception, which these look at
    --deselect tests/airflow/test_cycle.py::test_a_faulting_message_fails_task_and_run_names_the_message_and_alerts_once
    --deselect "tests/airflow/test_cycle.py::test_wcf_26_an_error_handler_that_does_not_deal_with_a_message_fails_the_task_after_the_commit[False]"
)

uv=$(command -v uv || echo .tools/bin/uv)
folder=.compat

python() {  # the interpreter of a version: on PATH, or where pyenv keeps it
    for found in "$(command -v "python$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        [ "$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ] && echo "$found" && return
    done
    echo "NOT TRIED: there is no Python $1 on this machine. Install it (python$1 on PATH, or pyenv install $1) and run make compat again." >&2
    return 1
}

make() {  # environment, interpreter, resolution, further requirements
    local environment=$1 interpreter=$2 resolution=$3
    shift 3
    rm -rf "$environment"
    "$uv" venv --quiet --python "$interpreter" "$environment" &&
        "$uv" pip install --quiet --python "$environment" --exclude-newer "$AS_OF" --resolution "$resolution" -r pyproject.toml "$@" &&
        "$uv" pip install --quiet --python "$environment" --exclude-newer "$AS_OF" hypothesis pytest pytest-randomly pytest-timeout &&
        "$uv" pip install --quiet --python "$environment" --no-deps "$folder"/dist/*.whl
}

try() {  # name, version of Python, resolution, further requirements
    local environment=$folder/$1 interpreter tests=("${TESTS[@]}")
    [ "$1" = oldest ] && tests+=("${OLDEST_TESTS[@]}")
    interpreter=$(python "$2") && make "$environment" "$interpreter" "${@:3}" || { failed+=("$1"); return; }
    echo "$1: $("$environment/bin/python" --version)" "$("$uv" pip list --python "$environment" 2>/dev/null |
        awk '$1 ~ /^(apache-airflow|deltalake|numpy|pandas|pyarrow|pyspark)$/ {printf ", %s %s", $1, $2}')"
    # Not "python -m pytest": the folder of the sources is not on the path, so the wheel is what is imported.
    PYSPARK_PYTHON=$PWD/$environment/bin/python "$environment/bin/pytest" -q -p no:cacheprovider --timeout 900 -o pythonpath= -W "$PANDAS_3" "${tests[@]}" || failed+=("$1")
}

rm -rf "$folder/dist"
"$uv" build --quiet --wheel --out-dir "$folder/dist" .
failed=()
try oldest "$OLDEST_PYTHON" lowest-direct "${OLDEST_PINS[@]}"
try newest "$NEWEST_PYTHON" highest
[ ${#failed[@]} -eq 0 ] || { echo "make compat: FAILED: ${failed[*]}" >&2; exit 1; }
echo "make compat: passed in the oldest and the newest environment"
