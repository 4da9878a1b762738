#!/usr/bin/env bash
# Everything that only a GPU can show, in one call of under 8 minutes and offline: builds,
# tests, sanitizers, measurements. docs/gpu.md says what each part is for.
#
#   scripts/gpu-suite.sh [RESULT.json]      default: $OUT/gpu-suite.json, else build/gpu-suite.json
#
# The result is written anew after each step, so that what was found is not lost when this
# is stopped; gpu-suite.log beside it has what the parts printed. Exits with 1 if a part
# failed. Variables:
#
#   OLLAMA_SRC             the patched Ollama tree; default build/ollama/src
#   KVTIER_OLLAMA          a built bin/ollama, for a generation; its libraries are beside it
#   KVTIER_RECALL_GGUF     the model for that, and its questions
#   KVTIER_RECALL_PROMPTS  (see ggml-paged/scripts/recall-prompts)
#   KVTIER_ROWS_TEST       a test binary of $OLLAMA_SRC/ml/backend/ggml, where there is no Go
#   GPU_SUITE_SECONDS      time for everything; default 460
#   GPU_SUITE_WORK         folder for what is built; default build/gpu-suite
set -u

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
OLLAMA_SRC=${OLLAMA_SRC:-$ROOT/build/ollama/src}
WORK=${GPU_SUITE_WORK:-$ROOT/build/gpu-suite}
SECONDS_MAX=${GPU_SUITE_SECONDS:-460}
PAGED=$WORK/paged # build folders
GGML=$WORK/ggml
SKIP=77 # exit status of a part that cannot run here

has() { command -v "$1" >/dev/null 2>&1; }
jobs_max() { nproc 2>/dev/null || echo 4; }

# --- parts -----------------------------------------------------------------------------
#
# A part is a function part_NAME that runs as a process of its own, with its output in
# $LOGS/NAME.log. It writes figures, a line of JSON each, to $FIGURES, and may say in a
# sentence why it ends as it does.

skip() {
	echo "$*" >"$REASON"
	exit $SKIP
}

fail() {
	echo "$*" >"$REASON"
	exit 1
}

# aim FILE FIGURE CONDITION KEY LEAST writes whether a measured ratio reaches what is aimed
# at. CONDITION is a text that the figure's line has.
aim() {
	local line value
	line=$(grep -F "\"figure\":\"$2\"" "$1" | grep -F -- "$3" | tail -n 1)
	value=$(sed -n "s/.*\"$4\":\([0-9.e+-]*\).*/\1/p" <<<"$line")
	[ -n "$value" ] || return 0
	awk -v v="$value" -v least="$5" -v what="$2 $4" 'BEGIN {
		printf "{\"aim\":\"%s\",\"least\":%s,\"reached\":%s,\"met\":%s}\n", what, least, v, (v + 0 >= least + 0 ? "true" : "false") }' >>"$FIGURES"
}

need_cmake() {
	has nvcc || skip "There is no nvcc in PATH or in /usr/local/cuda/bin."
	has cmake || skip "There is no cmake."
}

card_architecture() {
	nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0 2>/dev/null | tr -cd '0-9\n' | head -n 1
}

need_card() {
	has nvidia-smi || skip "There is no nvidia-smi, so no GPU."
	ARCH=$(card_architecture)
	[ -n "$ARCH" ] || skip "nvidia-smi names no GPU."
}

generator() { if has ninja; then echo Ninja; else echo "Unix Makefiles"; fi; }

part_machine() {
	local keys=name,driver_version,compute_cap,memory.total,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max
	local row key i=0
	echo "{\"cores\":$(jobs_max)}" >>"$FIGURES"
	has nvcc && echo "{\"nvcc\":$(json_string "$(nvcc --version | sed -n 's/.*release //p')")}" >>"$FIGURES"
	has nvidia-smi || fail "There is no nvidia-smi, so no GPU."
	nvidia-smi
	row=$(nvidia-smi --query-gpu=$keys --format=csv,noheader -i 0) || fail "nvidia-smi shows no GPU; is the driver loaded?"
	IFS=, read -ra values <<<"$row"
	for key in ${keys//,/ }; do
		echo "{$(json_string "$key"):$(json_string "${values[i]# }")}" >>"$FIGURES"
		i=$((i + 1))
	done
	has nvcc || fail "There is no nvcc in PATH or in /usr/local/cuda/bin, so nothing for the GPU can be built."
	local bench=$ROOT/ggml-paged/bench/cuda
	mkdir -p "$WORK"
	nvcc -O2 -std=c++17 -x cu "$bench/copy_rate.cpp" "$bench/link.cpp" -o "$WORK/copy_rate" || fail "nvcc cannot compile copy_rate."
	"$WORK/copy_rate" >>"$FIGURES" || fail "Copies to the device fail."
}

part_build() {
	need_cmake
	need_card
	cmake -S "$ROOT/ggml-paged" -B "$PAGED" -G "$(generator)" -DKVP_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$ARCH" || fail "CMake cannot configure ggml-paged."
	cmake --build "$PAGED" -j "$(jobs_max)" --target test_paged_attn bench_paged_cuda || fail "ggml-paged does not compile."
}

# The kernels must also compile for the oldest cards that the compiler knows.
part_old_cards() {
	need_cmake
	local known
	known=$(nvcc --list-gpu-arch 2>/dev/null)
	for arch in compute_52 compute_61; do
		grep -qx "$arch" <<<"$known" || skip "This nvcc no longer knows ${arch/compute_/sm_}."
	done
	cmake -S "$ROOT/ggml-paged" -B "$WORK/old" -G "$(generator)" -DKVP_CUDA=ON -DKVP_TESTS=OFF -DCMAKE_CUDA_ARCHITECTURES="52;61" || fail "CMake cannot configure ggml-paged."
	cmake --build "$WORK/old" -j "$(jobs_max)" --target ggml-paged-cuda || fail "ggml-paged does not compile for sm_52 and sm_61."
}

need_test() {
	TEST=$PAGED/tests/attn/test_paged_attn
	[ -x "$TEST" ] || skip "test_paged_attn was not built."
	mkdir -p "$WORK/spill"
}

# figures_of_test turns the last line of test_paged_attn into a figure.
figures_of_test() {
	sed -n 's/^\([a-z]*\) (\([a-z0-9]*\)), seed [0-9]*: \([0-9]*\) cases, \([0-9]*\) failed, \([0-9]*\) skipped.*largest error \([0-9.e+-]*\) of.*/{"backend":"\1","cases":\3,"failed":\4,"skipped":\5,"largest_error":\6}/p' "$1" >>"$FIGURES"
}

part_attention() {
	need_test
	"$TEST" --backend cuda --quick --spill "$WORK/spill"
	local status=$?
	figures_of_test "$LOGS/attention.log"
	[ $status = 0 ] || fail "test_paged_attn --backend cuda failed; its table is in the log."
}

sanitize() {
	local tool=$1 work_max=$2 sanitizer
	need_test
	sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/compute-sanitizer/compute-sanitizer)
	[ -x "$sanitizer" ] || skip "There is no compute-sanitizer."
	local log=$LOGS/$tool.log
	"$sanitizer" --tool "$tool" --error-exitcode 9 "$TEST" --backend cuda --quick --spill "$WORK/spill" --work-max "$work_max"
	local status=$?
	grep -q "Device not supported" "$log" && skip "compute-sanitizer does not work on this machine: device not supported."
	figures_of_test "$log"
	[ $status = 0 ] || fail "compute-sanitizer --tool $tool found something, see the log."
}

# Cases of at most so many GFLOP: the tools slow kernels down by up to a thousand times.
part_memcheck() { sanitize memcheck 0.002; }
part_racecheck() { sanitize racecheck 0.0005; }
part_synccheck() { sanitize synccheck 0.0005; }

part_bench() {
	local bench=$PAGED/bench/cuda/bench_paged_cuda status
	[ -x "$bench" ] || skip "bench_paged_cuda was not built."
	"$bench" --json "$FIGURES"
	status=$?
	echo >>"$FIGURES" # the last line may have been cut off
	aim "$FIGURES" decode '"tokens":65536,"queries":1,"heads":40,"kv_heads":8,"dim":128,"type":"f16"' of_link 0.9
	aim "$FIGURES" hybrid '"tokens":65536,"queries":1,"heads":40,"kv_heads":8,"dim":128,"type":"f16","page_cells":256' of_sum 0.85
	aim "$FIGURES" prefill '"queries":512' of_overlap 0.9
	[ $status = 0 ] || fail "bench_paged_cuda failed."
}

need_patched_tree() {
	[ -e "$OLLAMA_SRC/ml/backend/ggml/ggml/include/ggml-paged.h" ] || skip "There is no patched Ollama tree in $OLLAMA_SRC."
}

configure_ggml() {
	cmake -S "$ROOT/ggml-paged/tests/ggml" -B "$GGML" -G "$(generator)" -DKVP_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$ARCH" \
		-DKVP_GGML_PATCHED_SRC="$OLLAMA_SRC" -DKVP_GGML_CUDA_ALL="$1" || fail "CMake cannot configure ggml."
}

part_ggml_build() {
	need_patched_tree
	need_cmake
	need_card
	rm -f "$GGML/all"
	configure_ggml OFF
	nice -n 10 cmake --build "$GGML" -j "$(jobs_max)" --target test_ggml_paged || fail "ggml with the op does not compile."
}

part_ggml() {
	local test=$GGML/test_ggml_paged
	need_patched_tree
	[ -x "$test" ] || skip "test_ggml_paged was not built."
	"$test" || fail "The op inside ggml fails on the CPU."
	"$test" --cuda --time --json "$FIGURES" || fail "The op inside ggml fails on the GPU."
}

# All of ggml-cuda, for the parts after this. What the part before built is not built again.
part_ggml_all() {
	need_patched_tree
	{ [ -n "${KVTIER_ROWS_TEST:-}" ] || has go || [ -n "${KVTIER_OLLAMA:-}" ]; } || skip "Nothing that needs it can run: KVTIER_ROWS_TEST and KVTIER_OLLAMA are not set, and there is no Go."
	need_cmake
	need_card
	configure_ggml ON
	cmake --build "$GGML" -j "$(jobs_max)" --target ggml-cuda || fail "All of ggml-cuda does not compile."
	touch "$GGML/all"
}

need_ggml_all() { [ -e "$GGML/all" ] || skip "All of ggml-cuda was not built."; }

part_rows() {
	local test=TestRowsOfABatchWithoutOutputs status log=$LOGS/rows.log
	if [ -n "${KVTIER_ROWS_TEST:-}" ]; then
		[ -x "$KVTIER_ROWS_TEST" ] || fail "KVTIER_ROWS_TEST names $KVTIER_ROWS_TEST, which cannot be run."
	else
		has go || skip "There is no Go, and KVTIER_ROWS_TEST is not set."
		need_patched_tree
	fi
	need_ggml_all
	export OLLAMA_LIBRARY_PATH=$GGML/lib/ollama GOPROXY=off GOFLAGS=-mod=mod GOTOOLCHAIN=local
	if [ -n "${KVTIER_ROWS_TEST:-}" ]; then
		"$KVTIER_ROWS_TEST" -test.v -test.run "^$test\$"
		status=$?
	else
		(cd "$OLLAMA_SRC" && go list -deps ./ml/backend/ggml) || skip "The Go modules that Ollama needs are not on this machine."
		(cd "$OLLAMA_SRC" && go test -count=1 -v -run "^$test\$" ./ml/backend/ggml)
		status=$?
	fi
	[ $status = 0 ] || fail "$test failed, see the log."
	grep -q "PASS: $test/CUDA" "$log" || fail "$test passed, but it found no GPU."
}

# An Ollama in a folder of its own: the one that was brought, and ggml-cuda from here.
assemble_ollama() {
	local lib to
	lib=$(dirname "$KVTIER_OLLAMA")/../lib/ollama
	rm -rf "$WORK/ollama"
	mkdir -p "$WORK/ollama/bin" "$WORK/ollama/lib/ollama"
	cp "$KVTIER_OLLAMA" "$WORK/ollama/bin/ollama" || return 1
	[ ! -d "$lib" ] || cp -a "$lib/." "$WORK/ollama/lib/ollama/" || return 1
	if ! compgen -G "$WORK/ollama/lib/ollama/*/libggml-cuda.so*" >/dev/null; then
		need_ggml_all
		to=$WORK/ollama/lib/ollama/cuda_v$(nvcc --version | sed -n 's/.*release \([0-9]*\).*/\1/p')
		mkdir -p "$to" && cp "$GGML/lib/ollama/libggml-cuda.so" "$to/"
	fi
}

start_ollama() {
	local port=$((20000 + $$ % 20000))
	URL=http://127.0.0.1:$port
	env HOME="$WORK/home" OLLAMA_HOST="127.0.0.1:$port" OLLAMA_MODELS="$WORK/models" OLLAMA_PAGED_ATTN=1 \
		OLLAMA_PAGED_SPILL_DIR="$WORK/spill" OLLAMA_DEBUG=1 "$WORK/ollama/bin/ollama" serve &
	SERVER=$!
	trap 'kill $SERVER 2>/dev/null; wait $SERVER 2>/dev/null' EXIT
	local i
	for ((i = 0; i < 100; i++)); do
		curl -sf "$URL/api/version" >/dev/null && return 0
		kill -0 $SERVER 2>/dev/null || break
		sleep 0.2
	done
	fail "The server does not answer, see the log."
}

part_recall() {
	[ -n "${KVTIER_OLLAMA:-}" ] || skip "KVTIER_OLLAMA is not set."
	[ -x "$KVTIER_OLLAMA" ] || fail "KVTIER_OLLAMA names $KVTIER_OLLAMA, which cannot be run."
	{ [ -n "${KVTIER_RECALL_GGUF:-}" ] && [ -n "${KVTIER_RECALL_PROMPTS:-}" ]; } || skip "KVTIER_RECALL_GGUF and KVTIER_RECALL_PROMPTS are not set."
	{ [ -r "$KVTIER_RECALL_GGUF" ] && [ -r "$KVTIER_RECALL_PROMPTS" ]; } || fail "KVTIER_RECALL_GGUF or KVTIER_RECALL_PROMPTS cannot be read."
	has curl || skip "There is no curl."
	mkdir -p "$WORK/home" "$WORK/models" "$WORK/spill"
	assemble_ollama || fail "An Ollama to run cannot be put together."
	start_ollama
	printf 'FROM %s\n' "$(realpath "$KVTIER_RECALL_GGUF")" >"$WORK/Modelfile"
	env HOME="$WORK/home" OLLAMA_HOST="${URL#http://}" "$WORK/ollama/bin/ollama" create recall -f "$WORK/Modelfile" || fail "The model cannot be made, see the log."
	local answer body response asked=0 wrong=0
	while IFS=$'\t' read -r answer body; do
		asked=$((asked + 1))
		response=$(curl -s --data-binary @- "$URL/api/generate" <<<"$body")
		if ! grep -qF "\"response\":\"$answer\"" <<<"$response"; then
			echo "wanted '$answer', got: ${response:0:300}"
			wrong=$((wrong + 1))
		fi
		sed -n 's/.*\("total_duration":[0-9]*\).*\("prompt_eval_count":[0-9]*\).*\("prompt_eval_duration":[0-9]*\).*\("eval_count":[0-9]*\).*\("eval_duration":[0-9]*\).*/{\1,\2,\3,\4,\5}/p' <<<"$response" >>"$FIGURES"
	done <"$KVTIER_RECALL_PROMPTS"
	echo "{\"questions\":$asked,\"wrong\":$wrong}" >>"$FIGURES"
	[ $asked -gt 0 ] || fail "$KVTIER_RECALL_PROMPTS has no questions."
	[ $wrong = 0 ] || fail "$wrong of $asked answers are wrong, see the log."
	grep -q 'CUDA0' "$LOGS/recall.log" || fail "The answers are right, but no GPU was used; see the log."
}

# --- the result ------------------------------------------------------------------------

# json_string quotes a text; what is not printable ASCII is left out.
json_string() {
	local s
	s=$(LC_ALL=C tr '\n\t' '  ' <<<"$1" | LC_ALL=C tr -cd ' -~')
	s=${s//\\/\\\\}
	s=${s//\"/\\\"}
	printf '"%s"' "${s%"${s##*[! ]}"}"
}

# figures_of gives the complete lines of a part's figures as an array: the last one may
# have been cut off.
figures_of() {
	printf '['
	[ ! -s "$LOGS/$1.jsonl" ] || LC_ALL=C grep -a '^{.*}$' "$LOGS/$1.jsonl" | LC_ALL=C tr -cd ' -~\n' | paste -sd, - | tr -d '\n'
	printf ']'
}

write_result() {
	local name comma=
	{
		printf '{"suite":"gpu-suite 1","started":"%s","seconds":%d,"finished":%s,"parts":[' "$STARTED" "$SECONDS" "$1"
		for name in "${PARTS[@]}"; do
			printf '%s\n{"name":"%s","result":"%s","reason":%s,"seconds":%s,"figures":%s}' "$comma" "$name" \
				"${RESULT[$name]}" "$(json_string "${WHY[$name]}")" "${TOOK[$name]}" "$(figures_of "$name")"
			comma=,
		done
		printf '\n]}\n'
	} >"$JSON.new" && mv -f "$JSON.new" "$JSON"
}

# --- running ---------------------------------------------------------------------------

# start NAME SECONDS starts a part in the background, unless there is no time for it.
start() {
	local name=$1 budget=$2 left=$((SECONDS_MAX - SECONDS))
	[ "$budget" -lt "$left" ] || budget=$left
	BEGAN[$name]=$SECONDS
	BUDGET[$name]=$budget
	if [ "$budget" -lt 3 ]; then
		PID[$name]=
		return
	fi
	RESULT[$name]=running
	write_result false
	timeout -k 5 "$budget" env LOGS="$LOGS" FIGURES="$LOGS/$name.jsonl" REASON="$LOGS/$name.reason" \
		bash "${BASH_SOURCE[0]}" --part "$name" >"$LOGS/$name.log" 2>&1 &
	PID[$name]=$!
}

# keep_log adds what a part printed to the log of the suite, at most its last 5000 lines.
keep_log() {
	{
		printf '=== %s: %s %s\n' "$1" "${RESULT[$1]}" "${WHY[$1]}"
		[ ! -e "$LOGS/$1.log" ] || tail -n 5000 "$LOGS/$1.log"
	} >>"$LOG"
}

# finish NAME waits for a part and notes how it ended.
finish() {
	local name=$1 status why=
	if [ -z "${PID[$name]}" ]; then
		RESULT[$name]=failed
		WHY[$name]="No time was left for it."
	else
		wait "${PID[$name]}"
		status=$?
		PID[$name]=
		TOOK[$name]=$(cat "$LOGS/$name.took" 2>/dev/null || echo $((SECONDS - BEGAN[$name])))
		[ ! -s "$LOGS/$name.reason" ] || why=$(head -n 1 "$LOGS/$name.reason")
		case $status in
		0) RESULT[$name]=ok ;;
		"$SKIP") RESULT[$name]=skipped ;;
		124 | 137) RESULT[$name]=failed why="It ran longer than ${BUDGET[$name]} seconds, or was killed." ;;
		*) RESULT[$name]=failed why=${why:-"It ended with status $status: $(tail -n 1 "$LOGS/$name.log")"} ;;
		esac
		WHY[$name]=$why
	fi
	keep_log "$name"
	printf '%-12s %-8s %4ss  %s\n' "$name" "${RESULT[$name]}" "${TOOK[$name]}" "${WHY[$name]}"
	write_result false
}

run() {
	start "$@"
	finish "$1"
}

stopped() {
	local name
	trap '' TERM INT HUP
	for name in "${PARTS[@]}"; do
		if [ -n "${PID[$name]}" ]; then
			kill "${PID[$name]}" 2>/dev/null
			RESULT[$name]=failed
			WHY[$name]="The suite was stopped while it ran."
			keep_log "$name"
		fi
	done
	write_result false
	exit 143
}

main() {
	JSON=${1:-${OUT:-$ROOT/build}/gpu-suite.json}
	mkdir -p "$(dirname "$JSON")" "$WORK" || exit 2
	JSON=$(cd "$(dirname "$JSON")" && pwd)/$(basename "$JSON")
	LOG=${JSON%.json}.log
	LOGS=$WORK/logs
	mkdir -p "$LOGS" && rm -f "$LOGS"/* && : >"$LOG" || exit 2
	STARTED=$(date -u +%Y-%m-%dT%H:%M:%SZ)
	PARTS=(machine build ggml_build attention memcheck racecheck synccheck bench ggml ggml_all rows recall old_cards)
	declare -gA RESULT WHY TOOK PID BEGAN BUDGET
	local name
	for name in "${PARTS[@]}"; do
		RESULT[$name]=waiting WHY[$name]='' TOOK[$name]=0 PID[$name]=''
	done
	trap stopped TERM INT HUP
	write_result false

	run machine 40
	# What takes longest to build does so while the tests run; measurements wait for it.
	start ggml_build 240
	run build 150
	run attention 90
	run memcheck 40
	run racecheck 40
	run synccheck 40
	finish ggml_build
	run bench 75
	run ggml 60
	run ggml_all 180
	run rows 40
	run recall 60
	run old_cards 120

	write_result true
	echo "$JSON"
	for name in "${PARTS[@]}"; do
		[ "${RESULT[$name]}" != failed ] || exit 1
	done
}

# CUDA's own folder last: what is in PATH counts first.
export PATH=$PATH:/usr/local/cuda/bin
if [ "${1:-}" = --part ]; then
	("part_$2")
	status=$?
	echo $SECONDS >"$LOGS/$2.took"
	exit $status
fi
main "$@"
