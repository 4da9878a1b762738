package launch

import (
	"slices"
	"strings"
)

// Option is an option of llama-server, in llama.cpp's common/arg.cpp.
type Option struct {
	Flags  []string
	Off    []string // flags of the opposite
	Env    string   // the variable that sets it where no flag does
	Values int      // arguments behind a flag
}

// Effect says whether an option can change a bit of a row of K and V, or of a recurrent state, for
// the same tokens.
type Effect int

const (
	Never  Effect = iota
	Split         // where a device computes besides the CPU: it decides which layers are computed there
	Always        // or it is not known to change none
)

// Group are options that have their effect for one reason.
type Group struct {
	Why     string
	Rows    Effect
	Options []Option
}

func takes(flags, env string) Option {
	return Option{Flags: strings.Fields(flags), Env: env, Values: 1}
}

func alone(flags, env string) Option { return Option{Flags: strings.Fields(flags), Env: env} }

func either(on, off, env string) Option {
	return Option{Flags: strings.Fields(on), Off: strings.Fields(off), Env: env}
}

// Options that the code asks for.
var (
	model       = takes("-m --model", "LLAMA_ARG_MODEL")
	modelURL    = takes("-mu --model-url", "LLAMA_ARG_MODEL_URL")
	docker      = takes("-dr --docker-repo", "LLAMA_ARG_DOCKER_REPO")
	repository  = takes("-hf -hfr --hf-repo", "LLAMA_ARG_HF_REPO")
	ui          = either("--ui --webui", "--no-ui --no-webui", "LLAMA_ARG_UI")
	offline     = alone("--offline", "LLAMA_ARG_OFFLINE")
	host        = takes("--host", "LLAMA_ARG_HOST")
	port        = takes("--port", "LLAMA_ARG_PORT")
	savePath    = takes("--slot-save-path", "LLAMA_ARG_SLOT_SAVE_PATH")
	prefix      = takes("--api-prefix", "LLAMA_ARG_API_PREFIX")
	certificate = takes("--ssl-cert-file", "LLAMA_ARG_SSL_CERT_FILE")
	embedding   = alone("--embedding --embeddings", "LLAMA_ARG_EMBEDDINGS")
	reranking   = alone("--rerank --reranking", "LLAMA_ARG_RERANKING")
	cacheRAM    = takes("-cram --cache-ram", "LLAMA_ARG_CACHE_RAM")
	cacheReuse  = takes("--cache-reuse", "LLAMA_ARG_CACHE_REUSE")
	fullWindow  = alone("--swa-full", "LLAMA_ARG_SWA_FULL")
	metrics     = alone("--metrics", "LLAMA_ARG_ENDPOINT_METRICS")
	slots       = either("--slots", "--no-slots", "LLAMA_ARG_ENDPOINT_SLOTS")
	cachePrompt = either("--cache-prompt", "--no-cache-prompt", "LLAMA_ARG_CACHE_PROMPT")
	sleep       = takes("--sleep-idle-seconds", "LLAMA_ARG_SLEEP_IDLE_SECONDS")
	apiKey      = takes("--api-key", "LLAMA_API_KEY")
	apiKeyFile  = takes("--api-key-file", "LLAMA_ARG_API_KEY_FILE")
	adapter     = takes("--lora", "")
	draft       = takes("--spec-draft-model -md --model-draft", "LLAMA_ARG_SPEC_DRAFT_MODEL")
	shift       = either("--context-shift", "--no-context-shift", "LLAMA_ARG_CONTEXT_SHIFT")
	specType    = takes("--spec-type", "LLAMA_ARG_SPEC_TYPE")
	projector   = takes("-mm --mmproj", "LLAMA_ARG_MMPROJ")
	pings       = takes("--sse-ping-interval", "LLAMA_ARG_SSE_PING_INTERVAL")

	projectorOffload = either("--mmproj-offload", "--no-mmproj-offload", "LLAMA_ARG_MMPROJ_OFFLOAD")
	projectorDevice  = takes("-mmdev --mmproj-device", "MTMD_BACKEND_DEVICE")
	batch            = takes("-b --batch-size", "LLAMA_ARG_BATCH")
	microBatch       = takes("-ub --ubatch-size", "LLAMA_ARG_UBATCH")
	predict          = takes("-n --predict --n-predict", "LLAMA_ARG_N_PREDICT")
	spmInfill        = alone("--spm-infill", "")
	similarity       = takes("-sps --slot-prompt-similarity", "")

	draftRepository = takes("--spec-draft-hf -hfd -hfrd --hf-repo-draft", "LLAMA_ARG_SPEC_DRAFT_HF_REPO")
)

// noDrafts is the value of specType for no drafts.
const noDrafts = "none"

// specDefault is the flag for drafts with the usual settings, and without a model.
const specDefault = "--spec-default"

// reports are options with which llama-server prints something and ends.
var reports = []Option{
	alone("-h --help --usage", ""), alone("--version", ""), alone("--license", ""), alone("--list-devices", ""),
	alone("-cl --cache-list", ""), alone("--completion-bash", ""),
}

// Groups are all options of llama.cpp b10488, b10970 and b11434. An option is in a group without
// effect only if there is no doubt.
var Groups = []Group{
	{"prints something and ends", Never, reports},
	{"their content counts instead", Never, []Option{
		model, modelURL, docker, repository, takes("-hff --hf-file", "LLAMA_ARG_HF_FILE"), takes("-hft --hf-token", "HF_TOKEN"), adapter,
	}},
	{"what clients reach, and how", Never, []Option{
		host, port, prefix, certificate, takes("--ssl-key-file", "LLAMA_ARG_SSL_KEY_FILE"), apiKey, apiKeyFile,
		alone("--reuse-port", "LLAMA_ARG_REUSE_PORT"), takes("-to --timeout", "LLAMA_ARG_TIMEOUT"),
		pings, takes("--threads-http", "LLAMA_ARG_THREADS_HTTP"),
		takes("--cors-origins", "LLAMA_ARG_CORS_ORIGINS"), takes("--cors-methods", "LLAMA_ARG_CORS_METHODS"),
		takes("--cors-headers", "LLAMA_ARG_CORS_HEADERS"),
		either("--cors-credentials", "--no-cors-credentials", "LLAMA_ARG_CORS_CREDENTIALS"),
		takes("--path", "LLAMA_ARG_STATIC_PATH"), takes("--media-path", ""),
		ui,
		takes("--ui-config --webui-config", "LLAMA_ARG_UI_CONFIG"),
		takes("--ui-config-file --webui-config-file", "LLAMA_ARG_UI_CONFIG_FILE"),
		either("--ui-mcp-proxy --webui-mcp-proxy", "--no-ui-mcp-proxy --no-webui-mcp-proxy", "LLAMA_ARG_UI_MCP_PROXY"),
		takes("--tools", "LLAMA_ARG_TOOLS"), takes("--tools-runtime", "LLAMA_ARG_TOOLS_RUNTIME"),
		takes("--mcp-servers-config", "LLAMA_ARG_MCP_SERVERS_CONFIG"), takes("--mcp-servers-json", "LLAMA_ARG_MCP_SERVERS_JSON"),
		either("-ag --agent", "-no-ag --no-agent", "LLAMA_ARG_AGENT"),
		metrics, alone("--props", "LLAMA_ARG_ENDPOINT_PROPS"), slots,
		takes("-a --alias", "LLAMA_ARG_ALIAS"), takes("--tags", "LLAMA_ARG_TAGS"), takes("--embd-normalize", ""),
		takes("--models-dir", "LLAMA_ARG_MODELS_DIR"), takes("--models-preset", "LLAMA_ARG_MODELS_PRESET"),
		takes("--models-max", "LLAMA_ARG_MODELS_MAX"),
		either("--models-autoload", "--no-models-autoload", "LLAMA_ARG_MODELS_AUTOLOAD"), offline,
	}},
	{"logs and times", Never, []Option{
		alone("--log-disable", ""), takes("--log-file", "LLAMA_ARG_LOG_FILE"), takes("--log-prompts-dir", ""),
		takes("--log-colors", "LLAMA_ARG_LOG_COLORS"), alone("-v --verbose --log-verbose", ""),
		takes("-lv --verbosity --log-verbosity", "LLAMA_ARG_LOG_VERBOSITY"),
		either("--log-prefix", "--no-log-prefix", "LLAMA_ARG_LOG_PREFIX"),
		either("--log-timestamps", "--no-log-timestamps", "LLAMA_ARG_LOG_TIMESTAMPS"),
		either("--log-jsonl", "--no-log-jsonl", "LLAMA_ARG_LOG_JSONL"), either("--perf", "--no-perf", "LLAMA_ARG_PERF"),
	}},
	{"texts before they become tokens", Never, []Option{
		either("--jinja", "--no-jinja", "LLAMA_ARG_JINJA"), takes("--chat-template", "LLAMA_ARG_CHAT_TEMPLATE"),
		takes("--chat-template-file", "LLAMA_ARG_CHAT_TEMPLATE_FILE"), takes("--chat-template-kwargs", "LLAMA_ARG_CHAT_TEMPLATE_KWARGS"),
		takes("--reasoning-format", "LLAMA_ARG_THINK"), takes("-rea --reasoning", "LLAMA_ARG_REASONING"),
		takes("--reasoning-effort", "LLAMA_ARG_REASONING_EFFORT"), takes("--reasoning-budget", "LLAMA_ARG_THINK_BUDGET"),
		takes("--reasoning-budget-message", "LLAMA_ARG_THINK_BUDGET_MESSAGE"),
		either("--reasoning-preserve", "--no-reasoning-preserve", "LLAMA_ARG_REASONING_PRESERVE"),
		either("--skip-chat-parsing", "--no-skip-chat-parsing", "LLAMA_ARG_SKIP_CHAT_PARSING"),
		either("--prefill-assistant", "--no-prefill-assistant", "LLAMA_ARG_PREFILL_ASSISTANT"),
		either("-e --escape", "--no-escape", ""), alone("-sp --special", ""), spmInfill,
	}},
	{"which tokens follow", Never, []Option{
		predict, takes("-r --reverse-prompt", ""), takes("--samplers", ""),
		takes("-s --seed", ""), takes("--sampler-seq --sampling-seq", ""), alone("--ignore-eos", ""),
		takes("--temp --temperature", "LLAMA_ARG_TEMPERATURE"), takes("--top-k", "LLAMA_ARG_TOP_K"), takes("--top-p", "LLAMA_ARG_TOP_P"),
		takes("--min-p", "LLAMA_ARG_MIN_P"), takes("--top-nsigma --top-n-sigma", ""), takes("--xtc-probability", ""),
		takes("--xtc-threshold", ""), takes("--typical --typical-p", ""), takes("--repeat-last-n", ""),
		takes("--repeat-penalty", "LLAMA_ARG_REPEAT_PENALTY"), takes("--presence-penalty", "LLAMA_ARG_PRESENCE_PENALTY"),
		takes("--frequency-penalty", "LLAMA_ARG_FREQUENCY_PENALTY"), takes("--dry-multiplier", ""), takes("--dry-base", ""),
		takes("--dry-allowed-length", ""), takes("--dry-penalty-last-n", ""), takes("--dry-sequence-breaker", ""),
		takes("--adaptive-target", ""), takes("--adaptive-decay", ""), takes("--dynatemp-range", ""), takes("--dynatemp-exp", ""),
		takes("--mirostat", ""), takes("--mirostat-lr", ""), takes("--mirostat-ent", ""), takes("-l --logit-bias", ""),
		takes("--grammar", ""), takes("--grammar-file", ""), takes("-j --json-schema", ""), takes("-jf --json-schema-file", ""),
	}},
	{"slots kept; nothing is stored where rows would change", Never, []Option{
		takes("-c --ctx-size", "LLAMA_ARG_CTX_SIZE"), takes("-np --parallel", "LLAMA_ARG_N_PARALLEL"), takes("--keep", ""), shift,
		cacheRAM, cachePrompt, either("--cache-idle-slots", "--no-cache-idle-slots", "LLAMA_ARG_CACHE_IDLE_SLOTS"), savePath, sleep,
		takes("-ctxcp --ctx-checkpoints --swa-checkpoints", "LLAMA_ARG_CTX_CHECKPOINTS"),
		takes("-cms --checkpoint-min-step", "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT"),
		similarity, takes("-dt --defrag-thold", "LLAMA_ARG_DEFRAG_THOLD"),
	}},
	{"order of sums, which other requests change too", Never, []Option{
		either("-cb --cont-batching", "-nocb --no-cont-batching", "LLAMA_ARG_CONT_BATCHING"),
		takes("-t --threads", "LLAMA_ARG_THREADS"), takes("-tb --threads-batch", ""),
		takes("-C --cpu-mask", ""), takes("-Cr --cpu-range", ""), takes("--cpu-strict", ""), takes("--prio", ""), takes("--poll", ""),
		takes("-Cb --cpu-mask-batch", ""), takes("-Crb --cpu-range-batch", ""), takes("--cpu-strict-batch", ""),
		takes("--prio-batch", ""), takes("--poll-batch", ""),
	}},
	{"drafts, whose own rows are in no file, but for their type", Never, []Option{
		draft, draftRepository, takes("-lcs --lookup-cache-static", ""), takes("-lcd --lookup-cache-dynamic", ""),
		takes("--spec-draft-threads -td --threads-draft", ""), takes("--spec-draft-threads-batch -tbd --threads-batch-draft", ""),
		takes("--spec-draft-cpu-mask -Cd --cpu-mask-draft", ""), takes("--spec-draft-cpu-range -Crd --cpu-range-draft", ""),
		takes("--spec-draft-cpu-strict --cpu-strict-draft", ""), takes("--spec-draft-prio --prio-draft", ""),
		takes("--spec-draft-poll --poll-draft", ""), takes("--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft", ""),
		takes("--spec-draft-cpu-strict-batch --cpu-strict-batch-draft", ""), takes("--spec-draft-prio-batch --prio-batch-draft", ""),
		takes("--spec-draft-poll-batch --poll-batch-draft", ""),
		takes("--spec-draft-type-k -ctkd --cache-type-k-draft", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"),
		takes("--spec-draft-type-v -ctvd --cache-type-v-draft", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"),
		takes("--spec-draft-override-tensor -otd --override-tensor-draft", ""),
		alone("--spec-draft-cpu-moe -cmoed --cpu-moe-draft", "LLAMA_ARG_SPEC_DRAFT_CPU_MOE"),
		takes("--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft", "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE"),
		takes("--spec-draft-n-max", "LLAMA_ARG_SPEC_DRAFT_N_MAX"), takes("--spec-draft-n-min", "LLAMA_ARG_SPEC_DRAFT_N_MIN"),
		takes("--spec-draft-p-split --draft-p-split", "LLAMA_ARG_SPEC_DRAFT_P_SPLIT"), takes("--spec-draft-n-ubatch", "LLAMA_ARG_SPEC_DRAFT_N_UBATCH"),
		takes("--spec-draft-p-min --draft-p-min", "LLAMA_ARG_SPEC_DRAFT_P_MIN"),
		either("--spec-draft-backend-sampling", "--no-spec-draft-backend-sampling", "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING"),
		takes("--spec-draft-sampling", "LLAMA_ARG_SPEC_DRAFT_SAMPLING"), takes("--spec-draft-device -devd --device-draft", ""),
		takes("--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft", "LLAMA_ARG_N_GPU_LAYERS_DRAFT"),
		takes("--spec-synth-len", "LLAMA_ARG_SPEC_SYNTH_LEN"), takes("--spec-synth-rates", "LLAMA_ARG_SPEC_SYNTH_RATES"),
		takes("--spec-ngram-mod-n-min", ""), takes("--spec-ngram-mod-n-max", ""), takes("--spec-ngram-mod-n-match", ""),
		takes("--spec-ngram-simple-size-n", ""), takes("--spec-ngram-simple-size-m", ""), takes("--spec-ngram-simple-min-hits", ""),
		takes("--spec-ngram-map-k-size-n", ""), takes("--spec-ngram-map-k-size-m", ""), takes("--spec-ngram-map-k-min-hits", ""),
		takes("--spec-ngram-map-k4v-size-n", ""), takes("--spec-ngram-map-k4v-size-m", ""), takes("--spec-ngram-map-k4v-min-hits", ""),
		takes("--draft --draft-n --draft-max", "LLAMA_ARG_DRAFT_MAX"), takes("--draft-min --draft-n-min", "LLAMA_ARG_DRAFT_MIN"),
		takes("--spec-ngram-size-n", ""), takes("--spec-ngram-size-m", ""), takes("--spec-ngram-min-hits", ""),
	}},
	{"how weights get into memory", Never, []Option{
		takes("-lm --load-mode", "LLAMA_ARG_LOAD_MODE"), alone("--mlock", "LLAMA_ARG_MLOCK"),
		either("--mmap", "--no-mmap", "LLAMA_ARG_MMAP"), either("-dio --direct-io", "-ndio --no-direct-io", "LLAMA_ARG_DIO"),
		either("--warmup", "--no-warmup", ""), alone("--check-tensors", ""),
	}},
	{"they count for images alone", Never, []Option{projectorOffload, projectorDevice, batch, microBatch}},
	{"libraries count themselves; markers, downloads, traces", Never, []Option{
		{Env: "LLAMA_MEDIA_MARKER"}, {Env: "GGML_BACKEND_PATH"}, {Env: "LLAMA_CACHE"}, {Env: "GGML_NO_BACKTRACE"},
	}},
	{"the CPU computes all layers", Split, []Option{
		takes("-ngl --gpu-layers --n-gpu-layers", "LLAMA_ARG_N_GPU_LAYERS"), takes("-dev --device", "LLAMA_ARG_DEVICE"),
		takes("-sm --split-mode", "LLAMA_ARG_SPLIT_MODE"), takes("-ts --tensor-split", "LLAMA_ARG_TENSOR_SPLIT"),
		takes("-mg --main-gpu", "LLAMA_ARG_MAIN_GPU"), takes("-fit --fit", "LLAMA_ARG_FIT"),
		takes("-fitt --fit-target", "LLAMA_ARG_FIT_TARGET"), takes("-fitc --fit-ctx", "LLAMA_ARG_FIT_CTX"),
		either("-kvo --kv-offload", "-nkvo --no-kv-offload", "LLAMA_ARG_KV_OFFLOAD"), either("--op-offload", "--no-op-offload", ""),
	}},
	{"other code computes, for some weights also on a CPU alone", Always, []Option{
		either("--repack", "-nr --no-repack", "LLAMA_ARG_REPACK"), alone("--no-host", "LLAMA_ARG_NO_HOST"),
		takes("-ot --override-tensor", "LLAMA_ARG_OVERRIDE_TENSOR"), alone("-cmoe --cpu-moe", "LLAMA_ARG_CPU_MOE"),
		takes("-ncmoe --n-cpu-moe", "LLAMA_ARG_N_CPU_MOE"), takes("-ncffn --n-cpu-ffn", "LLAMA_ARG_N_CPU_FFN"),
		takes("-lzm --lazy-mode", "LLAMA_ARG_LAZY_MODE"), takes("--moe-cache-mib", "LLAMA_ARG_MOE_CACHE_MIB"), takes("--rpc", "LLAMA_ARG_RPC"), takes("--numa", "LLAMA_ARG_NUMA"),
		takes("-fa --flash-attn", "LLAMA_ARG_FLASH_ATTN"), alone("-bs --backend-sampling", "LLAMA_ARG_BACKEND_SAMPLING"),
		takes("--pooling", "LLAMA_ARG_POOLING"), embedding, reranking,
	}},
	{"rows have another form, or stand elsewhere", Always, []Option{
		takes("-ctk --cache-type-k", "LLAMA_ARG_CACHE_TYPE_K"), takes("-ctv --cache-type-v", "LLAMA_ARG_CACHE_TYPE_V"),
		fullWindow, cacheReuse, either("-kvu --kv-unified", "-no-kvu --no-kv-unified", "LLAMA_ARG_KV_UNIFIED"),
		takes("--kv-unified-per-slot", "LLAMA_ARG_KV_UNIFIED_PER_SLOT"),
	}},
	{"drafts: tokens are computed in other batches; `none` is none", Always, []Option{specType, alone(specDefault, "")}},
	{"positions are encoded otherwise", Always, []Option{
		takes("--rope-scaling", "LLAMA_ARG_ROPE_SCALING_TYPE"), takes("--rope-scale", "LLAMA_ARG_ROPE_SCALE"),
		takes("--rope-freq-base", "LLAMA_ARG_ROPE_FREQ_BASE"), takes("--rope-freq-scale", "LLAMA_ARG_ROPE_FREQ_SCALE"),
		takes("--yarn-orig-ctx", "LLAMA_ARG_YARN_ORIG_CTX"), takes("--yarn-ext-factor", "LLAMA_ARG_YARN_EXT_FACTOR"),
		takes("--yarn-attn-factor", "LLAMA_ARG_YARN_ATTN_FACTOR"), takes("--yarn-beta-slow", "LLAMA_ARG_YARN_BETA_SLOW"),
		takes("--yarn-beta-fast", "LLAMA_ARG_YARN_BETA_FAST"),
	}},
	{"the model is another one", Always, []Option{
		takes("--override-kv", ""), takes("--lora-scaled", ""), alone("--lora-init-without-apply", ""),
		takes("--control-vector", ""), takes("--control-vector-scaled", ""),
		{Flags: []string{"--control-vector-layer-range"}, Values: 2},
		alone("--embd-gemma-default", ""), alone("--fim-qwen-1.5b-default", ""), alone("--fim-qwen-3b-default", ""),
		alone("--fim-qwen-7b-default", ""), alone("--fim-qwen-7b-spec", ""), alone("--fim-qwen-14b-spec", ""),
		alone("--fim-qwen-30b-default", ""), alone("--gpt-oss-20b-default", ""), alone("--gpt-oss-120b-default", ""),
		alone("--vision-gemma-4b-default", ""), alone("--vision-gemma-12b-default", ""),
	}},
	{"images become other rows", Always, []Option{
		projector, takes("-mmu --mmproj-url", "LLAMA_ARG_MMPROJ_URL"),
		either("--mmproj-auto", "--no-mmproj --no-mmproj-auto", "LLAMA_ARG_MMPROJ_AUTO"),
		takes("--image-min-tokens", "LLAMA_ARG_IMAGE_MIN_TOKENS"), takes("--image-max-tokens", "LLAMA_ARG_IMAGE_MAX_TOKENS"),
		takes("--mtmd-batch-max-tokens", "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS"), takes("--video-fps", "LLAMA_ARG_VIDEO_FPS"),
		takes("--video-timestamp-interval", "LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL"), takes("--video-ffmpeg-dir", "LLAMA_ARG_VIDEO_FFMPEG_DIR"),
	}},
}

// normal is a flag as llama-server reads it: "_" in a long one is "-".
func normal(arg string) string {
	if strings.HasPrefix(arg, "--") {
		return strings.ReplaceAll(arg, "_", "-")
	}
	return arg
}

// sets reports whether an argument is a flag that sets the option.
func (o Option) sets(arg string) bool { return slices.Contains(o.Flags, normal(arg)) }

// unsets reports whether an argument is a flag of the option's opposite.
func (o Option) unsets(arg string) bool { return slices.Contains(o.Off, normal(arg)) }

// opposite is the option that the flags of the opposite are.
func (o Option) opposite() Option { return Option{Flags: o.Off} }

// offEnv is the variable that turns an option with an opposite off, whatever its value; "" without one.
func (o Option) offEnv() string {
	if len(o.Off) == 0 || o.Env == "" {
		return ""
	}
	return strings.Replace(o.Env, "LLAMA_ARG_", "LLAMA_ARG_NO_", 1)
}

// ByFlag returns the option that a flag sets or unsets, and its effect.
func ByFlag(flag string) (Option, Effect, bool) {
	return find(func(o Option) bool { return o.sets(flag) || o.unsets(flag) })
}

// byVariable returns the effect of a variable.
func byVariable(name string) (Effect, bool) {
	_, rows, known := find(func(o Option) bool { return o.Env == name || o.offEnv() == name })
	return rows, known
}

// find returns the first option for which is holds. An unknown one may change rows.
func find(is func(Option) bool) (Option, Effect, bool) {
	for _, g := range Groups {
		if i := slices.IndexFunc(g.Options, is); i >= 0 {
			return g.Options[i], g.Rows, true
		}
	}
	return Option{}, Always, false
}
