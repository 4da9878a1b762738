#!/usr/bin/env bash
# Everything that only a GPU can show, offline, in calls of under 8 minutes: builds, tests,
# sanitizers, measurements. docs/gpu.md describes each part.
#
#   scripts/gpu-suite.sh [RESULT.json]      default: $OUT/gpu-suite.json, else build/gpu-suite.json
#
# The result is rewritten after each step, so that a stop of the script loses no finding.
# The log beside it, gpu-suite.log for gpu-suite.json, has the output of the parts. Exits
# with 1 if a part failed. One card is used: the first that CUDA_VISIBLE_DEVICES names, as nvidia-smi counts
# them, else card 0. Variables:
#
#   GPU_SUITE_PARTS        names of the parts to run, where one call cannot run all of them;
#                          builds of an earlier call in the same folder are used
#   OLLAMA_SRC             the patched Ollama tree; default build/ollama/src
#   KVTIER_OLLAMA          a built bin/ollama, for whole conversations; its libraries are in
#                          ../lib/ollama from there, or are built here
#   KVTIER_BENCH           a built internal/bench, where there is no Go
#   KVTIER_BENCH_MODEL     -model of internal/bench; default small. 1b takes 2 GB of the card
#   KVTIER_E2E_TEST        a test binary of internal/e2e, where there is no Go
#   KVTIER_RECALL_GGUF     the model of the part recall, and its questions
#   KVTIER_RECALL_PROMPTS  (see -questions of internal/testmodel/mkmodel)
#   KVTIER_ROWS_TEST       a test binary of $OLLAMA_SRC/ml/backend/ggml, where there is no Go
#   GPU_SUITE_SECONDS      time for everything; default 460
#   GPU_SUITE_PART_SECONDS most time for one part; default 15 to 240, by part
#   GPU_SUITE_WORK         folder for builds; default build/gpu-suite
#   GPU_SUITE_SPILL        folder that is tried first for spill files; default is that one
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

# aim FILE FIGURE CONDITION KEY LEAST writes whether a measured ratio reaches its aim. CONDITION is a text that the figure's line has.
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

# ask_card KEYS prints nvidia-smi's row of the card that CUDA uses.
ask_card() {
	local row
	row=$(nvidia-smi --query-gpu="$1" --format=csv,noheader -i "${CARD:-0}" 2>/dev/null) || return 1
	head -n 1 <<<"$row"
}

# choose_card makes CUDA and nvidia-smi mean the same card: CUDA counts by speed, or as
# CUDA_DEVICE_ORDER says, nvidia-smi by PCI bus. A UUID is the same to both. Where no card is
# found by it (a part of one, say) CUDA_VISIBLE_DEVICES stays, and part_machine compares.
choose_card() {
	local wanted=${CUDA_VISIBLE_DEVICES-0} index uuid
	wanted=${wanted%%,*}
	CARD=
	has nvidia-smi || return 0
	export CUDA_DEVICE_ORDER=PCI_BUS_ID CARD
	while IFS=', ' read -r index uuid; do
		if [ -n "$wanted" ] && { [ "$index" = "$wanted" ] || [[ $uuid == GPU-* && $uuid == "$wanted"* ]]; }; then
			CARD=$uuid
			export CUDA_VISIBLE_DEVICES=$uuid
			return 0
		fi
	done < <(nvidia-smi --query-gpu=index,uuid --format=csv,noheader 2>/dev/null)
}

# bus_of is a PCI bus id as both write it: nvidia-smi has a longer domain.
bus_of() {
	local id=${1,,}
	id=${id// /}
	printf '%s' "${id: -12}"
}

need_card() {
	has nvidia-smi || skip "There is no nvidia-smi, so no GPU."
	ARCH=$(ask_card compute_cap | tr -cd '0-9\n')
	[ -n "$ARCH" ] || skip "nvidia-smi names no GPU."
}

generator() { if has ninja; then echo Ninja; else echo "Unix Makefiles"; fi; }

part_machine() {
	local keys=name,uuid,pci.bus_id,driver_version,compute_cap,memory.total,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max
	local row key bus cuda_bus i=0
	echo "{\"cores\":$(jobs_max)}" >>"$FIGURES"
	has nvcc && echo "{\"nvcc\":$(json_string "$(nvcc --version | sed -n 's/.*release //p')")}" >>"$FIGURES"
	has nvidia-smi || fail "There is no nvidia-smi, so no GPU."
	nvidia-smi
	row=$(ask_card $keys) || fail "nvidia-smi shows no GPU; is the driver loaded?"
	IFS=, read -ra values <<<"$row"
	for key in ${keys//,/ }; do
		echo "{$(json_string "$key"):$(json_string "${values[i]# }")}" >>"$FIGURES"
		[ "$key" != pci.bus_id ] || bus=$(bus_of "${values[i]}")
		i=$((i + 1))
	done
	has nvcc || fail "There is no nvcc in PATH or in /usr/local/cuda/bin, so nothing for the GPU can be built."
	local bench=$ROOT/ggml-paged/bench/cuda
	mkdir -p "$WORK"
	nvcc -O2 -std=c++17 -x cu "$bench/copy_rate.cpp" "$bench/link.cpp" -o "$WORK/copy_rate" || fail "nvcc cannot compile copy_rate."
	"$WORK/copy_rate" | tee -a "$FIGURES"
	[ "${PIPESTATUS[0]}" = 0 ] || fail "Copies to the device fail."
	cuda_bus=$(bus_of "$(sed -n 's/.*"pci_bus_id":"\([^"]*\)".*/\1/p' "$FIGURES" | tail -n 1)")
	[ "$cuda_bus" = "$bus" ] || fail "CUDA uses the card at $cuda_bus and nvidia-smi tells of the one at $bus; set CUDA_VISIBLE_DEVICES to one UUID of nvidia-smi -L."
}

part_build() {
	need_cmake
	need_card
	cmake -S "$ROOT/ggml-paged" -B "$PAGED" -G "$(generator)" -DKVP_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$ARCH" || fail "CMake cannot configure ggml-paged."
	cmake --build "$PAGED" -j "$(jobs_max)" --target test_paged_attn bench_paged_cuda || fail "ggml-paged does not compile."
}

# test_paged_attn knows the needs of a spill file: not a RAM file system, and unnamed files.
part_spill() {
	local folder why refused=
	need_test
	rm -f "$WORK/spill.folder"
	for folder in "${GPU_SUITE_SPILL:-$WORK/spill}" /var/tmp "${TMPDIR:-/tmp}" "${HOME:-/}" "$ROOT"; do
		folder=${folder%/}
		[ "$folder" = "${GPU_SUITE_SPILL:-$WORK/spill}" ] || folder=$folder/kvtier-gpu-spill-$(id -u)
		if why=$(umask 077 && mkdir -p "$folder" 2>&1 && "$TEST" --probe-spill "$folder" 2>&1); then
			echo "$folder" >"$WORK/spill.folder"
			echo "{\"spill\":$(json_string "$folder")}" >>"$FIGURES"
			[ -z "$refused" ] || echo "Pages spill to $folder, as $refused." >"$REASON"
			return 0
		fi
		echo "$why"
		rmdir "$folder" 2>/dev/null
		why=$(tail -n 1 <<<"$why")
		echo "{\"refused\":$(json_string "$folder"),\"why\":$(json_string "$why")}" >>"$FIGURES"
		refused=${refused:-$why}
	done
	echo '{"spill":"none"}' >>"$FIGURES"
	skip "No folder here can have a spill file, so that cases have memory for all pages: $refused. Name one in GPU_SUITE_SPILL."
}

# spill_folder is where pages spill to, or none.
spill_folder() { cat "$WORK/spill.folder" 2>/dev/null || echo none; }

# Cases that would spill are named as left out, not failed.
note_no_spill() {
	[ "$(spill_folder)" = none ] || return 0
	sed -n 's/^\([0-9]* cases\) ran with a full budget only: .*/\1 with less memory than pages skipped: there is no folder for a spill file./p' "$1" | head -n 1 >"$REASON"
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
	TEST=$PAGED/test_paged_attn
	[ -x "$TEST" ] || skip "test_paged_attn was not built."
}

# figures_of_test turns what test_paged_attn says of its backend into a figure.
figures_of_test() {
	sed -n 's/^\([a-z]*\) (\([a-z0-9]*\)), seed [0-9]*: \([0-9]*\) cases, \([0-9]*\) failed, \([0-9]*\) skipped.*largest error \([0-9.e+-]*\) of max|V|, relative \([0-9.]*\) %.*/{"backend":"\1","cases":\3,"failed":\4,"skipped":\5,"largest_error":\6,"relative_percent":\7}/p' "$1" >>"$FIGURES"
	sed -n 's/^\([0-9]*\) cases ran with a full budget only.*/{"spill_cases_skipped":\1}/p' "$1" >>"$FIGURES"
}

# The seed's measure of correctness: a relative error below 0.05 %.
aim_relative_error() {
	local value
	value=$(sed -n 's/.*"relative_percent":\([0-9.]*\).*/\1/p' "$FIGURES" | tail -n 1)
	[ -n "$value" ] || return 0
	awk -v v="$value" 'BEGIN { printf "{\"aim\":\"relative error in percent\",\"below\":0.05,\"reached\":%s,\"met\":%s}\n", v, (v < 0.05 ? "true" : "false") }' >>"$FIGURES"
}

part_attention() {
	need_test
	"$TEST" --backend cuda --quick --spill "$(spill_folder)"
	local status=$?
	figures_of_test "$LOGS/attention.log"
	aim_relative_error
	[ $status = 0 ] || fail "test_paged_attn --backend cuda failed; its table is in the log."
	note_no_spill "$LOGS/attention.log"
}

sanitize() {
	local tool=$1 work_max=$2 sanitizer
	need_test
	sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/compute-sanitizer/compute-sanitizer)
	[ -x "$sanitizer" ] || skip "There is no compute-sanitizer."
	local log=$LOGS/$tool.log
	"$sanitizer" --tool "$tool" --error-exitcode 9 "$TEST" --backend cuda --quick --spill "$(spill_folder)" --work-max "$work_max"
	local status=$?
	grep -q "Device not supported" "$log" && skip "compute-sanitizer does not work on this machine: device not supported."
	figures_of_test "$log"
	[ $status = 0 ] || fail "compute-sanitizer --tool $tool found something, see the log."
	note_no_spill "$log"
}

# Cases of at most so many GFLOP: the tools slow kernels down by up to a thousand times.
part_memcheck() { sanitize memcheck 0.002; }
part_racecheck() { sanitize racecheck 0.0005; }
part_synccheck() { sanitize synccheck 0.0005; }

part_bench() {
	local bench=$PAGED/bench_paged_cuda status
	[ -x "$bench" ] || skip "bench_paged_cuda was not built."
	"$bench" --only decode,pages,prefill,hybrid --json "$FIGURES"
	status=$?
	echo >>"$FIGURES" # the last line may have been cut off
	aim "$FIGURES" decode '"tokens":65536,"queries":1,"heads":40,"kv_heads":8,"dim":128,"type":"f16"' of_link 0.9
	aim "$FIGURES" hybrid '"tokens":65536,"queries":1,"heads":40,"kv_heads":8,"dim":128,"type":"f16","page_cells":256' of_sum 0.85
	aim "$FIGURES" prefill '"queries":512' of_overlap 0.9
	[ $status = 0 ] || fail "bench_paged_cuda failed."
}

# The seed's table by itself: other projects will compare with this table.
part_seed() {
	local bench=$PAGED/bench_paged_cuda status
	[ -x "$bench" ] || skip "bench_paged_cuda was not built."
	"$bench" --only seed --json "$FIGURES"
	status=$?
	echo >>"$FIGURES"
	[ $status = 0 ] || fail "bench_paged_cuda --only seed failed."
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
	KVP_SPILL_DIR=$(spill_folder)
	export KVP_SPILL_DIR
	"$test" || fail "The op inside ggml fails on the CPU."
	"$test" --cuda --time --json "$FIGURES" || fail "The op inside ggml fails on the GPU."
	[ "$KVP_SPILL_DIR" != none ] || echo "Checks of reads from a spill file skipped: there is no folder for one." >"$REASON"
}

# All of ggml-cuda, for the parts after this. Files that the part before built are not built again.
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

# row_test PART TEST runs a Go test of the patched backend on every GPU there is.
row_test() {
	local test=$2 status log=$LOGS/$1.log
	if [ -n "${KVTIER_ROWS_TEST:-}" ]; then
		[ -x "$KVTIER_ROWS_TEST" ] || fail "KVTIER_ROWS_TEST names $KVTIER_ROWS_TEST, which cannot be run."
	else
		has go || skip "There is no Go, and KVTIER_ROWS_TEST is not set."
		need_patched_tree
	fi
	need_ggml_all
	export OLLAMA_LIBRARY_PATH=$GGML/lib/ollama GOPROXY=off GOTOOLCHAIN=local
	if [ -n "${KVTIER_ROWS_TEST:-}" ]; then
		"$KVTIER_ROWS_TEST" -test.v -test.run "^$test\$"
		status=$?
	else
		(cd "$OLLAMA_SRC" && go list -deps ./ml/backend/ggml) || skip "Go does not find all that the test needs: $(tail -n 1 "$log")."
		(cd "$OLLAMA_SRC" && go test -count=1 -v -run "^$test\$" ./ml/backend/ggml)
		status=$?
	fi
	[ $status = 0 ] || fail "$test failed, see the log."
	! grep -q "no tests to run" "$log" || skip "The patched Ollama has no $test."
	grep -q "PASS: $test/CUDA" "$log" || fail "$test passed, but it found no GPU."
}

# Rows are read while a batch without outputs runs; written while one runs that reads their
# cells; and columns of a permuted V are read beside outputs that nobody has read yet.
part_rows() { row_test rows TestRowsOfABatchWithoutOutputs; }
part_rows_in() { row_test rows_in TestRowsWrittenAfterABatchWithoutOutputs; }
part_columns() { row_test columns TestColumnsBesideUnreadOutputs; }

# An Ollama in a folder of its own: the one that was brought, and ggml-cuda from here.
assemble_ollama() {
	local lib to
	lib=$(dirname "$KVTIER_OLLAMA")/../lib/ollama
	rm -rf "$WORK/ollama"
	mkdir -p "$WORK/ollama/bin" "$WORK/ollama/lib/ollama"
	cp "$KVTIER_OLLAMA" "$WORK/ollama/bin/ollama" || return 1
	[ ! -d "$lib" ] || cp -a "$lib/." "$WORK/ollama/lib/ollama/" || return 1
	if ! compgen -G "$WORK/ollama/lib/ollama/libggml-cpu*" >/dev/null; then
		need_ggml_all
		cp -a "$GGML"/lib/ollama/libggml-*.so* "$WORK/ollama/lib/ollama/" || return 1
		rm -f "$WORK/ollama/lib/ollama/libggml-cuda.so"
	fi
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
		OLLAMA_PAGED_SPILL_DIR="$(spill_folder)" OLLAMA_DEBUG=1 "$WORK/ollama/bin/ollama" serve &
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

need_ollama() {
	[ -n "${KVTIER_OLLAMA:-}" ] || skip "KVTIER_OLLAMA is not set."
	[ -x "$KVTIER_OLLAMA" ] || fail "KVTIER_OLLAMA names $KVTIER_OLLAMA, which cannot be run."
}

need_spill() { [ "$(spill_folder)" != none ] || skip "Paged attention needs a folder for its spill file, and there is none here."; }

# engine PART ARGUMENTS runs the benchmark of the whole engine with the Ollama put together
# here; its report becomes a figure.
engine() {
	local part=$1 status report why
	shift
	need_ollama
	if [ -n "${KVTIER_BENCH:-}" ]; then
		[ -x "$KVTIER_BENCH" ] || fail "KVTIER_BENCH names $KVTIER_BENCH, which cannot be run."
	else
		has go || skip "There is no Go, and KVTIER_BENCH is not set."
		KVTIER_BENCH=$WORK/bench
		(cd "$ROOT" && GOPROXY=off GOTOOLCHAIN=local go build -o "$KVTIER_BENCH" ./internal/bench) || skip "internal/bench cannot be built here."
	fi
	assemble_ollama || fail "An Ollama to run cannot be put together."
	report=$WORK/$part.json
	rm -rf "$report" "$WORK/$part.pages"
	mkdir -p "$WORK/$part.pages"
	(cd "$ROOT" && KVTIER_OLLAMA=$WORK/ollama/bin/ollama "$KVTIER_BENCH" -dir "$WORK/$part.pages" -log "$LOGS/$part-server.log" -o "$report" -model "${KVTIER_BENCH_MODEL:-small}" "$@")
	status=$?
	why=$(tail -n 1 "$LOGS/$part.log")
	rm -rf "$WORK/$part.pages"
	tail -n 500 "$LOGS/$part-server.log"
	[ $status = 0 ] || fail "The benchmark of the whole engine failed: $why"
	echo "{\"engine\":$(tr -d '\n' <"$report")}" >>"$FIGURES"
	grep -qE 'offloaded [1-9][0-9]*/|msg="model weights" device=CUDA' "$LOGS/$part-server.log" || fail "There are figures, but no GPU was used; see the log of the servers."
}

# Prefill with the tier off and on, and the wait for a prompt that comes back after kill -9.
part_engine_ttft() { engine engine_ttft -only ttft -sizes 4096,16384 -n 2; }
# The cost of sealing in prefill and decode, and the rate of restores.
part_engine_cost() { engine engine_cost -only cost,restore -n 1 -pairs 2; }
# A conversation with paged attention beside one with stock attention.
part_engine_paged() {
	need_ollama
	need_spill
	engine engine_paged -only paged -n 2 -pairs 1
}

# The same with elastic memory on and off.
part_engine_elastic() { engine engine_elastic -only elastic -n 3; }

# Elastic memory alone: random histories that are read back, and what a commit costs.
part_elastic() {
	has cmake || skip "There is no cmake."
	need_card
	cmake -S "$ROOT/elastic" -B "$WORK/elastic" -G "$(generator)" || fail "CMake cannot configure elastic."
	cmake --build "$WORK/elastic" -j "$(jobs_max)" --target elastic_card || fail "elastic does not compile."
	"$WORK/elastic/elastic_card" 15 | tee -a "$FIGURES"
	[ "${PIPESTATUS[0]}" = 0 ] || fail "elastic_card found wrong bytes, or the driver refused something; see the log."
}

# Whole conversations on the card: restored ones, and ones with elastic memory, to the last bit.
part_device() {
	local status test=${KVTIER_E2E_TEST:-} log=$LOGS/device.log
	need_ollama
	if [ -n "$test" ]; then
		[ -x "$test" ] || fail "KVTIER_E2E_TEST names $test, which cannot be run."
	else
		has go || skip "There is no Go, and KVTIER_E2E_TEST is not set."
		test=$WORK/e2e.test
		(cd "$ROOT" && GOPROXY=off GOTOOLCHAIN=local go test -c -o "$test" ./internal/e2e) || skip "internal/e2e cannot be built here."
	fi
	assemble_ollama || fail "An Ollama to run cannot be put together."
	test=$(realpath "$test")
	(cd "$ROOT/internal/e2e" && KVTIER_CARD=1 KVTIER_OLLAMA=$WORK/ollama/bin/ollama "$test" -test.v -test.run '^Test(Device|ServersShareADevice)')
	status=$?
	[ $status = 0 ] || fail "A conversation on the card is wrong, see the log."
	grep -q "^--- PASS: TestDevice" "$log" || skip "internal/e2e has no test for a card."
}

part_recall() {
	need_ollama
	need_spill
	{ [ -n "${KVTIER_RECALL_GGUF:-}" ] && [ -n "${KVTIER_RECALL_PROMPTS:-}" ]; } || skip "KVTIER_RECALL_GGUF and KVTIER_RECALL_PROMPTS are not set."
	{ [ -r "$KVTIER_RECALL_GGUF" ] && [ -r "$KVTIER_RECALL_PROMPTS" ]; } || fail "KVTIER_RECALL_GGUF or KVTIER_RECALL_PROMPTS cannot be read."
	has curl || skip "There is no curl."
	mkdir -p "$WORK/home" "$WORK/models"
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

# json_string quotes a text, without its bytes that are not printable ASCII.
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
	local name=$1 budget=$2 left=$((SECONDS_MAX - SECONDS)) most=${GPU_SUITE_PART_SECONDS:-$2}
	[ "$budget" -le "$most" ] || budget=$most
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

# ended waits for the process of a part. False where it is still there some seconds after it
# was killed: one that hangs in the driver cannot be ended, and the others go on.
ended() {
	local last=$((BEGAN[$1] + BUDGET[$1] + 8))
	while kill -0 "${PID[$1]}" 2>/dev/null; do
		[ $SECONDS -lt $last ] || return 1
		sleep 0.1
	done
}

# keep_log adds the output of a part to the log of the suite, at most its last 5000 lines.
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
	elif ! ended "$name"; then
		PID[$name]=
		TOOK[$name]=$((SECONDS - BEGAN[$name]))
		RESULT[$name]=failed
		WHY[$name]="It ran longer than ${BUDGET[$name]} seconds and could not be ended."
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
	wanted "$1" || return 0
	start "$@"
	finish "$1"
}

wanted() { [[ " ${PARTS[*]} " == *" $1 "* ]]; }

# choose_parts takes all parts, or those that GPU_SUITE_PARTS names.
choose_parts() {
	local name all=(machine ggml_build build spill attention memcheck racecheck synccheck bench seed ggml ggml_all
		rows rows_in columns elastic device recall engine_ttft engine_cost engine_paged engine_elastic old_cards)
	PARTS=("${all[@]}")
	[ -n "${GPU_SUITE_PARTS:-}" ] || return 0
	read -ra PARTS <<<"$GPU_SUITE_PARTS"
	for name in "${PARTS[@]}"; do
		if [[ " ${all[*]} " != *" $name "* ]]; then
			echo "GPU_SUITE_PARTS: there is no part $name, only ${all[*]}." >&2
			exit 2
		fi
	done
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
	choose_parts
	JSON=${1:-${OUT:-$ROOT/build}/gpu-suite.json}
	mkdir -p "$(dirname "$JSON")" "$WORK" || exit 2
	JSON=$(cd "$(dirname "$JSON")" && pwd)/$(basename "$JSON")
	LOG=${JSON%.json}.log
	LOGS=$WORK/logs
	mkdir -p "$LOGS" && rm -f "$LOGS"/* && : >"$LOG" || exit 2
	STARTED=$(date -u +%Y-%m-%dT%H:%M:%SZ)
	declare -gA RESULT WHY TOOK PID BEGAN BUDGET
	local name
	for name in "${PARTS[@]}"; do
		RESULT[$name]=waiting WHY[$name]='' TOOK[$name]=0 PID[$name]=''
	done
	trap stopped TERM INT HUP
	write_result false

	choose_card
	# An earlier call chose a folder to spill to, and removed it when it was empty.
	[ "$(spill_folder)" = none ] || (umask 077 && mkdir -p "$(spill_folder)")
	run machine 40
	# The longest build runs beside the tests; measurements wait for it.
	! wanted ggml_build || start ggml_build 240
	run build 150
	run spill 15
	run attention 90
	run memcheck 40
	run racecheck 40
	run synccheck 40
	! wanted ggml_build || finish ggml_build
	run bench 75
	run seed 60
	run ggml 60
	run ggml_all 180
	run rows 40
	run rows_in 40
	run columns 40
	run elastic 60
	run device 150
	run recall 60
	run engine_ttft 150
	run engine_cost 150
	run engine_paged 150
	run engine_elastic 150
	run old_cards 120
	rmdir "$(spill_folder)" 2>/dev/null

	write_result true
	echo "$JSON"
	for name in "${PARTS[@]}"; do
		[ "${RESULT[$name]}" != failed ] || exit 1
	done
}

# CUDA's own folder last: PATH counts first.
export PATH=$PATH:/usr/local/cuda/bin
if [ "${1:-}" = --part ]; then
	("part_$2")
	status=$?
	echo $SECONDS >"$LOGS/$2.took"
	exit $status
fi
main "$@"
