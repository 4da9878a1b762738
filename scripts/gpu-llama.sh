#!/usr/bin/env bash
# What only a card shows of kvtier before a llama-server with CUDA, offline:
#
#   scripts/gpu-llama.sh prepare            fills build/gpu-llama/carry, where scripts/build-llama-server ran
#   scripts/gpu-llama.sh [RESULT.json]      default: $OUT/gpu-llama.json, else build/gpu-llama.json
#
# The second form builds and measures, in calls of under six minutes: call it until it says that all
# is done. A call goes on where the one before ended or was killed. What passed is not run again;
# what failed is, after the rest. docs/gpu.md describes the parts. The result is rewritten after
# each step, and gpu-llama.log beside it has the output. Exits with 1 if a part failed or waits.
#
# One card is used, the first that CUDA_VISIBLE_DEVICES names, else card 0. It needs nvcc, CMake,
# Python 3, 64 GiB of video memory and 40 GB of disk. Variables:
#
#   GPU_LLAMA_PARTS         names of the parts to run, in this order
#   GPU_LLAMA_SECONDS       time for a call; default 345
#   GPU_LLAMA_PART_SECONDS  time for each part; default 30 to 330, by part
#   GPU_LLAMA_WORK          folder for builds, models and what passed; default build/gpu-llama/work
#   GPU_LLAMA_CARRY         the folder that prepare fills; default build/gpu-llama/carry
#   GPU_LLAMA_SERVER        a built llama-server, which is then not built
#   GPU_LLAMA_DRIVE         more arguments of scripts/gpu-llama.py, such as "--rounds 3" for more
#                           rounds of part a, or "--size tiny --cpu" for a trial without a card
set -u

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
WORK=${GPU_LLAMA_WORK:-$ROOT/build/gpu-llama/work}
CARRY=${GPU_LLAMA_CARRY:-$ROOT/build/gpu-llama/carry}
read -ra DRIVE <<<"${GPU_LLAMA_DRIVE:-}"
SECONDS_MAX=${GPU_LLAMA_SECONDS:-345}
DRIVER=$ROOT/scripts/gpu-llama.py
STATE=$WORK/state
ALL=(machine build models a b e c d f)
SKIP=77      # exit status of a part that cannot run here
LEAST=10     # seconds without which a part is not begun
CARRY_MIB=64 # that fit in a call

has() { command -v "$1" >/dev/null 2>&1; }

# --- prepare ---------------------------------------------------------------------------

# The source of what scripts/build-llama-server builds, without what CUDA does not need.
pack_source() {
	local src=$ROOT/build/llama/src llama ollama parts part
	llama=$(cd "$src" 2>/dev/null && compgen -G 'llama.cpp-*') && ollama=$(cd "$src" && compgen -G 'ollama-*') || return 1
	parts=("$ollama/LLAMA_CPP_VERSION" "$ollama/llama")
	for part in CMakeLists.txt LICENSE cmake common ggml include licenses src tools vendor; do
		parts+=("$llama/$part")
	done
	tar -C "$src" -cJf "$CARRY/source.tar.xz" --transform "s,^$llama,llama.cpp,;s,^$ollama,ollama," \
		--exclude='*.png' --exclude='*.gz' --exclude='*.jpeg' --exclude='*.wav' --exclude='*.mp3' --exclude='tests' \
		--exclude="$llama/ggml/src/ggml-"{blas,cann,et,hexagon,metal,musa,opencl,openvino,rpc,sycl,virtgpu,vulkan,webgpu,zdnn,zendnn} "${parts[@]}"
}

prepare() {
	rm -rf "$CARRY" "$WORK"
	mkdir -p "$CARRY" || exit 2
	pack_source || { echo "There is no source of llama-server in build/llama: run scripts/build-llama-server first." >&2 && exit 2; }
	for program in kvtier-llama-server=cmd/kvtier mkmodel=internal/testmodel/mkmodel; do
		(cd "$ROOT" && CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -trimpath -ldflags='-s -w' -o "$CARRY/${program%=*}" "./${program#*=}") || exit 2
	done
	du -sm "$CARRY"
	[ "$(du -sm "$CARRY" | cut -f 1)" -lt $CARRY_MIB ] || { echo "That is more than $CARRY_MIB MiB." >&2 && exit 2; }
}

# --- parts -----------------------------------------------------------------------------
#
# A part is a function part_NAME that runs as a process of its own, with its output in
# $STATE/NAME.log. It writes figures, a line of JSON each, to $STATE/NAME.jsonl, and may say in a
# sentence, in $STATE/NAME.reason, why it ends as it does.

skip() {
	echo "$*" >"$STATE/$PART.reason"
	exit $SKIP
}

fail() {
	echo "$*" >"$STATE/$PART.reason"
	exit 1
}

ask_card() { nvidia-smi --query-gpu="$1" --format=csv,noheader -i "$CARD" 2>/dev/null | head -n 1; }

# figure NAME TEXT adds a figure, of the letters that need no quoting in JSON.
figure() { printf '{"%s":"%s"}\n' "$1" "$(tr -cd ' !#-[]-~' <<<"$2")" >>"$STATE/$PART.jsonl"; }

part_machine() {
	local key row i=0
	: >"$STATE/$PART.jsonl"
	figure cores "$(nproc)"
	figure disk_free "$(df -h --output=avail "$WORK" | tail -n 1)"
	figure memory "$(grep MemAvailable /proc/meminfo)"
	figure fuse "$([ -w /dev/fuse ] && echo yes || echo no)"
	[[ " ${DRIVE[*]} " != *" --cpu "* ]] || return 0
	has nvidia-smi || fail "There is no nvidia-smi, so no GPU."
	nvidia-smi
	row=$(ask_card name,driver_version,compute_cap,memory.total,memory.used,pcie.link.gen.max)
	[ -n "$row" ] || fail "nvidia-smi shows no card $CARD; is the driver loaded?"
	IFS=, read -ra values <<<"$row"
	for key in name driver compute_cap memory_total memory_used pcie_gen; do
		figure $key "${values[i]# }"
		i=$((i + 1))
	done
	has nvcc || fail "There is no nvcc in PATH or in /usr/local/cuda/bin."
	figure nvcc "$(nvcc --version | sed -n 's/.*release //p')"
}

part_build() {
	local arch generator=()
	[ -z "${GPU_LLAMA_SERVER:-}" ] || skip "GPU_LLAMA_SERVER names a built one."
	has cmake || fail "There is no cmake."
	has nvcc || fail "There is no nvcc in PATH or in /usr/local/cuda/bin."
	arch=$(ask_card compute_cap | tr -cd '0-9')
	[ -n "$arch" ] || fail "nvidia-smi names no GPU."
	if [ ! -e "$WORK/source/whole" ]; then
		mkdir -p "$WORK/source"
		tar -C "$WORK/source" -xJf "$CARRY/source.tar.xz" || fail "$CARRY/source.tar.xz cannot be unpacked; make it by scripts/gpu-llama.sh prepare."
		touch "$WORK/source/whole"
	fi
	! has ninja || generator=(-G Ninja)
	cmake -S "$WORK/source/ollama/llama/server" -B "$WORK/cmake" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release \
		-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$arch-real" -DGGML_CUDA_FA_ALL_QUANTS=OFF -DGGML_CUDA_NCCL=OFF -DGGML_CUDA_COMPRESSION_MODE=speed \
		-DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF -DBUILD_SHARED_LIBS=ON -DCMAKE_PROJECT_INCLUDE="$ROOT/scripts/llama-quick.cmake" \
		-DOLLAMA_LLAMA_CPP_SKIP_COMPAT_PATCH=ON -DFETCHCONTENT_SOURCE_DIR_LLAMA_CPP="$WORK/source/llama.cpp" || fail "CMake cannot configure llama.cpp."
	cmake --build "$WORK/cmake" --target llama-server -j "$(nproc)" || fail "llama-server does not compile."
	[ -x "$(server)" ] || fail "The build made no $(server)."
}

server() { echo "${GPU_LLAMA_SERVER:-$WORK/cmake/bin/llama-server}"; }

# drive runs a part of the driver, which says in its last line why it fails.
drive() {
	local status
	PYTHONUNBUFFERED=1 python3 -B "$DRIVER" "$PART" --figures "$STATE/$PART.jsonl" --work "$WORK" --server "$(server)" --daemon "$CARRY/kvtier-llama-server" \
		--mkmodel "$CARRY/mkmodel" --json "$JSON" "${DRIVE[@]}"
	status=$?
	[ $status = 0 ] || fail "$(tail -n 1 "$STATE/$PART.log")"
}

part_models() {
	[ -x "$CARRY/mkmodel" ] || fail "There is no $CARRY/mkmodel; make it by scripts/gpu-llama.sh prepare."
	drive
}

measure() {
	[ -x "$(server)" ] || skip "There is no llama-server: the part build has not passed."
	[ -x "$CARRY/kvtier-llama-server" ] || skip "There is no $CARRY/kvtier-llama-server; make it by scripts/gpu-llama.sh prepare."
	drive
}

part_a() { measure; } # first token hot, cold, restored
part_b() { measure; } # the same to the bit
part_c() { measure; } # what a save costs another stream
part_d() { measure; } # rows under other arguments
part_e() { measure; } # from which length on restoring wins
part_f() { measure; } # memory after kills

# --- running ---------------------------------------------------------------------------

# result_of prints how a part ended in this call or an earlier one: ok, failed, skipped, running, waiting.
result_of() { head -n 1 "$STATE/$1.result" 2>/dev/null || echo waiting; }

# note NAME RESULT SECONDS REASON
note() {
	printf '%s\n%s\n%s\n' "$2" "$3" "$4" >"$STATE/$1.result.new" && mv -f "$STATE/$1.result.new" "$STATE/$1.result"
	write_result
}

write_result() { python3 -B "$DRIVER" report "$STATE" "$JSON"; }

left() { echo $((SECONDS_MAX - SECONDS)); }

# start NAME SECONDS starts a part in the background, unless it has passed or there is no time for it.
start() {
	local name=$1 budget=${GPU_LLAMA_PART_SECONDS:-$2}
	PID[$name]=
	[ "$(result_of "$name")" != ok ] || return 0
	CUT[$name]=
	if [ "$budget" -gt "$(left)" ]; then
		budget=$(left) CUT[$name]=yes
		[ "$budget" -ge $LEAST ] || return 0
	fi
	BUDGET[$name]=$budget
	rm -f "$STATE/$name.reason"
	note "$name" running 0 ""
	BEGAN[$name]=$SECONDS
	timeout -k 5 "$budget" bash "${BASH_SOURCE[0]}" --part "$name" >"$STATE/$name.log" 2>&1 &
	PID[$name]=$!
	echo "${PID[$name]}" >"$STATE/$name.pid"
}

# end_earlier ends what a call that was killed left running. The group is that of timeout.
end_earlier() {
	local name pid
	for name in "${ALL[@]}"; do
		pid=$(cat "$STATE/$name.pid" 2>/dev/null) || continue
		! tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q -e "--part $name \$" || kill -KILL -- "-$pid"
		rm -f "$STATE/$name.pid"
	done
}

# ended waits for the process of a part. False where it is still there some seconds after it was
# killed: one that hangs in the driver cannot be ended, and the others go on.
ended() {
	local last=$((BEGAN[$1] + BUDGET[$1] + 12))
	while kill -0 "${PID[$1]}" 2>/dev/null; do
		[ $SECONDS -lt $last ] || return 1
		sleep 0.1
	done
}

keep_log() {
	printf '=== %s: %s\n' "$1" "$2" >>"$LOG"
	tail -n 2000 "$STATE/$1.log" >>"$LOG"
}

# finish NAME waits for a part and notes how it ended.
finish() {
	local name=$1 status result=failed why=
	[ -n "${PID[$name]}" ] || return 0
	if ! ended "$name"; then
		why="It ran longer than ${BUDGET[$name]} seconds and could not be ended."
	else
		wait "${PID[$name]}"
		status=$?
		[ ! -s "$STATE/$name.reason" ] || why=$(head -n 1 "$STATE/$name.reason")
		case $status in
		0) result=ok ;;
		"$SKIP") result=skipped ;;
		124 | 137)
			why="It ran longer than ${BUDGET[$name]} seconds, or was killed."
			[ -z "${CUT[$name]}" ] || result=waiting why="The call ended after ${BUDGET[$name]} seconds of it." ;;
		*) why=${why:-"It ended with status $status: $(tail -n 1 "$STATE/$name.log")"} ;;
		esac
	fi
	PID[$name]=
	rm -f "$STATE/$name.pid"
	keep_log "$name" "$result $why"
	note "$name" $result $((SECONDS - BEGAN[$name])) "$why"
	printf '%-8s %-8s %4ss  %s\n' "$name" $result $((SECONDS - BEGAN[$name])) "$why"
}

run() {
	start "$@"
	finish "$1"
}

stopped() {
	local name
	trap '' TERM INT HUP
	for name in "${!PID[@]}"; do
		[ -n "${PID[$name]}" ] || continue
		kill "${PID[$name]}" 2>/dev/null
		keep_log "$name" stopped
		note "$name" waiting $((SECONDS - BEGAN[$name])) "The call was stopped while it ran."
	done
	exit 143
}

declare -A TIME=([machine]=30 [build]=330 [models]=150 [a]=170 [b]=170 [e]=150 [c]=100 [d]=120 [f]=150)

# run_parts runs those that have not failed before, and then those that have: a part that hangs
# leaves time to the others. Models are written beside the build.
run_parts() {
	local name later=()
	for name in "$@"; do
		case $name/$(result_of "$name") in
		build/* | models/*)
			start "$name" "${TIME[$name]}" ;;
		*/failed) later+=("$name") ;;
		*)
			finish build
			finish models
			run "$name" "${TIME[$name]}" ;;
		esac
	done
	finish build
	finish models
	for name in "${later[@]}"; do
		run "$name" "${TIME[$name]}"
	done
}

main() {
	local name parts
	read -ra parts <<<"${GPU_LLAMA_PARTS:-${ALL[*]}}"
	for name in "${parts[@]}"; do
		[[ " ${ALL[*]} " == *" $name "* ]] || { echo "GPU_LLAMA_PARTS: there is no part $name, only ${ALL[*]}." >&2 && exit 2; }
	done
	has python3 || { echo "There is no python3." >&2 && exit 2; }
	JSON=${1:-${OUT:-$ROOT/build}/gpu-llama.json}
	mkdir -p "$(dirname "$JSON")" "$STATE" || exit 2
	JSON=$(cd "$(dirname "$JSON")" && pwd)/$(basename "$JSON")
	export JSON
	LOG=${JSON%.json}.log
	: >"$LOG" || exit 2
	declare -gA PID=([build]='' [models]='') BEGAN BUDGET CUT
	trap stopped TERM INT HUP
	end_earlier
	write_result
	run_parts "${parts[@]}"
	write_result
	echo "$JSON"
	for name in "${parts[@]}"; do
		case $(result_of "$name") in
		waiting | running) echo "Call again: $name waits." && exit 1 ;;
		failed) exit 1 ;;
		skipped) [ "$name" = build ] || exit 1 ;; # a part needs one that has not passed
		esac
	done
	echo "All is done."
}

# CUDA counts cards as nvidia-smi does. Its folder comes last: PATH counts first.
export PATH=$PATH:/usr/local/cuda/bin CUDA_DEVICE_ORDER=PCI_BUS_ID
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0}
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}
CARD=$CUDA_VISIBLE_DEVICES
export CARD CUDA_VISIBLE_DEVICES
case ${1:-} in
prepare) prepare ;;
--part)
	PART=$2
	("part_$2")
	exit
	;;
*) main "$@" ;;
esac
