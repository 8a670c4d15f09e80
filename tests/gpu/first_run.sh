#!/bin/bash
# A quarter of an hour on a borrowed GPU, in two parts, each within one call:
#
#     tests/gpu/first_run.sh A    # is everything right? ceilings, whole steps, torch, kernels, models
#     tests/gpu/first_run.sh B    # how fast is it? products and whole steps
#
# No step's failure stops the next; each has a limit of its own and a line in the summary. All that
# they print is in $OUT/log.txt, records are beside it. What the machine lacks comes from .gpu
# (`make gpu-bundle`). DRY=1 runs the same steps on the CPU; STEPS=name,name runs some of them.
set -u
cd "$(dirname "$0")/../.." || exit 1
OUT=${OUT:-/tmp/first-run}
DRY=${DRY:-}
PYTHON=${PYTHON:-python3}
STEPS=${STEPS:-}
LOG=$OUT/log.txt
SITE=$(mktemp -d)
FAILED=0
SUMMARY=""
trap 'rm -rf "$SITE"' EXIT
mkdir -p "$OUT"
: >"$LOG"
export PYTHONPATH=.types:tests:tests/lib:tests/cuda_host:$SITE${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 SPEC_CACHE_DIR=$SITE/cache SPEC_TEST_CUDA=1

# step NAME SECONDS COMMAND...
step() {
    local name=$1 limit=$2 start=$SECONDS code line
    shift 2
    case ",$STEPS," in ,, | *,"$name",*) ;; *) return ;; esac
    [ -z "$DRY" ] || limit=$((4 * limit)) # a CPU takes longer
    printf '\n== %s\n' "$name" >>"$LOG"
    timeout -s INT -k 10 "$limit" "$@" >>"$LOG" 2>&1
    code=$?
    [ $code -eq 0 ] || FAILED=1
    line=$(printf '%-10s exit %-3d %4d s of %d' "$name" $code $((SECONDS - start)) "$limit")
    SUMMARY+=$line$'\n'
    echo "$line"
}

# device_tests NAME SECONDS PROCESSES FOLDER: a process whose device is lost is replaced.
device_tests() {
    local which=(-m gpu -n "$3")
    [ -z "$DRY" ] || which=(-m "" -n 2 -k "norm_quant and host or test_pairs and order or llama-F16 and host")
    step "$1" "$2" "$PYTHON" -m pytest -q -rfE --tb=short -p no:cacheprovider \
        --continue-on-collection-errors "${which[@]}" "$4"
}
kernels() { # NAME SECONDS SECTIONS
    step "$1" "$2" "$PYTHON" -m bench.kernels ${DRY:+--dry} --only "$3" --out "$OUT/$1.json"
}
whole_steps() { # NAME SECONDS SECTIONS
    step "$1" "$2" "$PYTHON" -m bench.gpu ${DRY:+--dry} --only "$3" \
        --seconds $(($2 - 15)) --out "$OUT/$1.json"
}

step bundle 30 "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --target "$SITE" \
    .gpu/*.whl
mkdir -p "$SITE/cache" && [ ! -d .gpu/cubins ] || cp -r .gpu/cubins "$SITE/cache/"
case ${1:-} in
A)
    kernels ceilings 30 bandwidth,gaps
    whole_steps exact 80 27B:exact,27B:plain,27B:starts,27B:kernels
    device_tests device 60 4 tests/gpu
    device_tests kernels 95 12 tests/cuda_kernels
    device_tests models 95 8 tests/core/backend/cuda
    ;;
B)
    kernels products 60 bandwidth,qmm
    whole_steps 27B 150 27B:plain,27B:widths,27B:mtp,27B:prompts,27B:kernels
    whole_steps 35B-A3B 90 35B-A3B:plain,35B-A3B:widths,35B-A3B:mtp,35B-A3B:kernels
    ;;
*)
    echo "usage: tests/gpu/first_run.sh A|B" >&2
    exit 2
    ;;
esac
tail -c 9000 "$LOG"
printf '\n%s' "$SUMMARY"
exit $FAILED
