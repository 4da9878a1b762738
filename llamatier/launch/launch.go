// Package launch reads the command line and the environment of llama-server, as far as a
// server between llama-server and its clients must know them.
package launch

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Command is how somebody starts llama-server.
type Command struct {
	Args    []string // without the name of the program
	Environ []string // all variables, as in os.Environ
}

// option is an option of llama-server: its flags, and the variable that sets it where no flag
// does.
type option struct {
	flags []string
	env   string
	alone bool // takes no value
}

// is reports whether an argument is a flag of the option. llama-server reads "_" in a long
// flag as "-".
func (o option) is(arg string) bool {
	if strings.HasPrefix(arg, "--") {
		arg = strings.ReplaceAll(arg, "_", "-")
	}
	return slices.Contains(o.flags, arg)
}

// The options, in llama.cpp's common/arg.cpp.
var (
	model       = option{flags: []string{"-m", "--model"}, env: "LLAMA_ARG_MODEL"}
	modelURL    = option{flags: []string{"-mu", "--model-url"}, env: "LLAMA_ARG_MODEL_URL"}
	docker      = option{flags: []string{"-dr", "--docker-repo"}, env: "LLAMA_ARG_DOCKER_REPO"}
	repository  = option{flags: []string{"-hf", "-hfr", "--hf-repo"}, env: "LLAMA_ARG_HF_REPO"}
	host        = option{flags: []string{"--host"}, env: "LLAMA_ARG_HOST"}
	port        = option{flags: []string{"--port"}, env: "LLAMA_ARG_PORT"}
	savePath    = option{flags: []string{"--slot-save-path"}}
	prefix      = option{flags: []string{"--api-prefix"}, env: "LLAMA_ARG_API_PREFIX"}
	certificate = option{flags: []string{"--ssl-cert-file"}, env: "LLAMA_ARG_SSL_CERT_FILE"}
	embedding   = option{flags: []string{"--embedding", "--embeddings"}, env: "LLAMA_ARG_EMBEDDINGS", alone: true}
	reranking   = option{flags: []string{"--rerank", "--reranking"}, env: "LLAMA_ARG_RERANKING", alone: true}
	cacheRAM    = option{flags: []string{"-cram", "--cache-ram"}, env: "LLAMA_ARG_CACHE_RAM"}
	cacheReuse  = option{flags: []string{"--cache-reuse"}, env: "LLAMA_ARG_CACHE_REUSE"}
	fullWindow  = option{flags: []string{"--swa-full"}, env: "LLAMA_ARG_SWA_FULL", alone: true}
	metrics     = option{flags: []string{"--metrics"}, env: "LLAMA_ARG_ENDPOINT_METRICS", alone: true}
	slots       = option{flags: []string{"--slots"}, env: "LLAMA_ARG_ENDPOINT_SLOTS", alone: true}
	noSlots     = option{flags: []string{"--no-slots"}, env: "LLAMA_ARG_NO_ENDPOINT_SLOTS", alone: true}
	cachePrompt = option{flags: []string{"--cache-prompt"}, env: "LLAMA_ARG_CACHE_PROMPT", alone: true}
	noCache     = option{flags: []string{"--no-cache-prompt"}, env: "LLAMA_ARG_NO_CACHE_PROMPT", alone: true}
	sleep       = option{flags: []string{"--sleep-idle-seconds"}}
	apiKey      = option{flags: []string{"--api-key"}, env: "LLAMA_API_KEY"}
	apiKeyFile  = option{flags: []string{"--api-key-file"}, env: "LLAMA_ARG_API_KEY_FILE"}
	adapter     = option{flags: []string{"--lora"}}
	draft       = option{flags: []string{"-md", "--model-draft", "--spec-draft-model"}, env: "LLAMA_ARG_SPEC_DRAFT_MODEL"}
	shift       = option{flags: []string{"--context-shift"}, env: "LLAMA_ARG_CONTEXT_SHIFT", alone: true}
	noShift     = option{flags: []string{"--no-context-shift"}, env: "LLAMA_ARG_NO_CONTEXT_SHIFT", alone: true}
	specType    = option{flags: []string{"--spec-type"}, env: "LLAMA_ARG_SPEC_TYPE"}
)

// reports are flags with which llama-server prints something and ends.
var reports = []string{"-h", "--help", "--usage", "--version", "--license", "--list-devices", "-cl", "--cache-list", "--completion-bash"}

// value returns the value of an option, and whether the option is set. Of several flags the
// last one counts, as in llama-server; a flag counts before a variable.
func (c Command) value(o option) (string, bool) {
	for i := len(c.Args) - 1; i >= 0; i-- {
		switch {
		case !o.is(c.Args[i]):
		case o.alone:
			return "1", true
		case i+1 < len(c.Args):
			return c.Args[i+1], true
		}
	}
	value := c.variables()[o.env]
	return value, value != ""
}

// on reports whether an option without a value is set, or has a value that is true.
func (c Command) on(o option) bool {
	value, ok := c.value(o)
	return ok && isOn(value)
}

// isOn reports whether a value is not one of those that turn an option off.
func isOn(value string) bool {
	return !slices.Contains([]string{"0", "off", "false", "disabled"}, strings.ToLower(value))
}

// Serves reports whether llama-server will answer prompts of one model. Otherwise
// llama-server prints something and ends, computes embeddings, or is a router.
func (c Command) Serves() bool {
	if slices.ContainsFunc(c.Args, func(arg string) bool { return slices.Contains(reports, arg) }) || c.on(embedding) || c.on(reranking) {
		return false
	}
	return slices.ContainsFunc([]option{model, modelURL, repository}, func(o option) bool {
		_, ok := c.value(o)
		return ok
	})
}

// Hidden returns the reason why no other server can stand before this llama-server, or "".
func (c Command) Hidden() string {
	if _, ok := c.value(certificate); ok {
		return "it answers by TLS"
	}
	if _, ok := c.value(prefix); ok {
		return "its addresses have a prefix"
	}
	switch name, _ := c.value(host); {
	case strings.Contains(name, ","):
		return "it listens on several addresses"
	case strings.HasSuffix(name, ".sock"):
		return "it listens on a Unix socket"
	}
	if slices.Contains(c.Environ, "AIP_MODE=PREDICTION") {
		return "its port is that of AIP_HTTP_PORT"
	}
	if path := c.configured(); path != "" {
		return "options of it are in " + path
	}
	return ""
}

// Unstorable returns the reason why slots of this llama-server cannot be stored, or "".
func (c Command) Unstorable() string {
	if _, ok := c.value(savePath); ok {
		return "--slot-save-path is in use"
	}
	if n, ok := c.value(cacheReuse); ok && n != "0" {
		return "--cache-reuse moves rows to other positions"
	}
	if c.on(fullWindow) {
		return "--swa-full keeps windows in another form"
	}
	_, given := c.value(cachePrompt)
	if _, off := c.value(noCache); off || given && !c.on(cachePrompt) {
		return "--no-cache-prompt computes each prompt anew"
	}
	if n, ok := c.value(sleep); ok && n != "-1" {
		return "--sleep-idle-seconds loads the model again, from a file that may be another one by then"
	}
	for _, name := range append(slices.Clone(c.Args), slices.Collect(maps.Keys(c.variables()))...) {
		flag := "--" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(name, "LLAMA_ARG_"), "--"), "_", "-"))
		switch {
		case specType.is(flag) && !c.drafts():
		case strings.HasPrefix(flag, "--spec-"), strings.HasPrefix(flag, "--fim-"), draft.is(name), slices.Contains([]string{"-hfd", "-hfrd", "--hf-repo-draft"}, name):
			return "drafts have a state that is not saved"
		case strings.HasPrefix(name, "--") && strings.HasSuffix(flag, "-default"):
			return "it names a model of its own"
		case strings.HasPrefix(flag, "--lora-scaled"), strings.HasPrefix(flag, "--control-vector"):
			return "the content of a file that it names is not known"
		}
	}
	_, url := c.value(modelURL)
	_, repo := c.value(repository)
	_, image := c.value(docker)
	if c.Model() == "" || url || repo || image || split.MatchString(c.Model()) {
		return "the model is not one file with a name"
	}
	return ""
}

// drafts reports whether a type of drafts is named.
func (c Command) drafts() bool {
	if name := c.variables()[specType.env]; name != "" && name != "none" {
		return true
	}
	for i, arg := range c.Args {
		if specType.is(arg) && (i+1 == len(c.Args) || c.Args[i+1] != "none") {
			return true
		}
	}
	return false
}

// split matches the name of a part of a model.
var split = regexp.MustCompile(`-[0-9]{5}-of-[0-9]{5}\.gguf$`)

// variables are the variables of llama-server and ggml that are set.
func (c Command) variables() map[string]string {
	set := make(map[string]string)
	for _, v := range c.Environ {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "LLAMA_") || strings.HasPrefix(name, "GGML_") {
			set[name] = value
		}
	}
	return set
}

// Address returns the host and the port on which llama-server is asked to listen.
func (c Command) Address() (name string, number int, err error) {
	name, number = "127.0.0.1", 8080
	if v, ok := c.value(host); ok {
		name = v
	}
	if v, ok := c.value(port); ok {
		if number, err = strconv.Atoi(v); err != nil {
			return "", 0, err
		}
	}
	return name, number, nil
}

// Model returns the path of the model's file, "" where llama-server downloads the model.
func (c Command) Model() string {
	path, _ := c.value(model)
	return path
}

// Behind returns the arguments for the same llama-server on a Unix socket. With saveTo, slots
// are saved below that directory.
func (c Command) Behind(socket, saveTo string) []string {
	args := c.without(host, port)
	if saveTo != "" {
		// With a cache in memory, a request for a busy slot can replace the slot's sequence.
		args = append(c.without(host, port, cacheRAM, noSlots, noShift), "--slot-save-path", saveTo, "--cache-ram", "0")
		if !c.Slots() {
			args = append(args, "--slots")
		}
		if !c.Metrics() {
			args = append(args, "--metrics")
		}
		if !c.Shifts() { // as is usual, and must stay so
			args = append(args, "--no-context-shift")
		}
	}
	return append(args, "--host", socket)
}

// without returns the arguments without some options and their values: llama-server warns of
// options that are given twice.
func (c Command) without(options ...option) []string {
	var args []string
	for i := 0; i < len(c.Args); i++ {
		at := slices.IndexFunc(options, func(o option) bool { return o.is(c.Args[i]) })
		switch {
		case at < 0:
			args = append(args, c.Args[i])
		case !options[at].alone:
			i++ // the value
		}
	}
	return args
}

// Placement names all that decides the cost of a token: the options of devices, threads and
// batches among them.
func (c Command) Placement() string {
	args := c.without(host, port, model, modelURL, repository, savePath)
	for _, v := range slices.Sorted(slices.Values(c.Environ)) {
		name, _, _ := strings.Cut(v, "=")
		device := strings.HasSuffix(name, "_VISIBLE_DEVICES") || strings.HasPrefix(name, "GGML_")
		if device || strings.HasPrefix(name, "LLAMA_ARG_") && name != host.env && name != port.env {
			args = append(args, v)
		}
	}
	return strings.Join(args, " ")
}

// Keys returns one of the keys that llama-server asks its clients for, "" if none is in the
// arguments and variables, and the path of a file with more of them, or "".
func (c Command) Keys() (key, file string) {
	list, _ := c.value(apiKey)
	key, _, _ = strings.Cut(strings.TrimLeft(list, ","), ",")
	file, _ = c.value(apiKeyFile)
	return key, file
}

// Metrics reports whether clients may read the metrics.
func (c Command) Metrics() bool { return c.on(metrics) }

// Slots reports whether clients may look at the slots, as they may unless they are told not to.
func (c Command) Slots() bool { return c.either(slots, noSlots, true) }

// Shifts reports whether llama-server may shift the context of a slot that is full. It does not
// unless it is told to.
func (c Command) Shifts() bool { return c.either(shift, noShift, false) }

// either reports whether an option is on that has an opposite.
func (c Command) either(on, off option, usually bool) bool {
	for _, arg := range slices.Backward(c.Args) {
		if on.is(arg) || off.is(arg) {
			return on.is(arg)
		}
	}
	set := c.variables()
	if _, given := set[off.env]; given {
		return false
	}
	if value, given := set[on.env]; given {
		return isOn(value)
	}
	return usually
}

// Adapters returns the paths of the model's adapters.
func (c Command) Adapters() []string {
	var paths []string
	for i, arg := range c.Args[:max(0, len(c.Args)-1)] {
		if adapter.is(arg) {
			paths = append(paths, strings.Split(c.Args[i+1], ",")...)
		}
	}
	return paths
}

// neutral are the options that change no row of K and V, with a value each. Options of the
// devices on which layers are computed are among them: the libraries count as part of the
// engine.
var neutral = []option{
	host, port, model, modelURL, repository, cacheRAM, savePath, adapter, specType,
	{flags: []string{"-c", "--ctx-size"}}, {flags: []string{"-np", "--parallel"}},
	{flags: []string{"-b", "--batch-size"}}, {flags: []string{"-ub", "--ubatch-size"}},
	{flags: []string{"-t", "--threads"}}, {flags: []string{"-tb", "--threads-batch"}},
	{flags: []string{"-lv", "--verbosity", "--log-verbosity"}}, {flags: []string{"--log-file"}},
	{flags: []string{"--chat-template", "--chat-template-file", "--reasoning-format", "--reasoning-budget"}},
	{flags: []string{"-n", "--predict", "--n-predict"}}, {flags: []string{"--keep"}},
	{flags: []string{"--temp"}}, {flags: []string{"-s", "--seed"}}, {flags: []string{"-a", "--alias"}},
	{flags: []string{"-to", "--timeout"}}, {flags: []string{"--threads-http"}}, apiKey, apiKeyFile,
	{flags: []string{"-ngl", "--gpu-layers", "--n-gpu-layers"}},
}

// silent are such options without a value.
var silent = []string{
	"--no-webui", "--webui", "--offline", "--no-log-prefix", "--no-log-timestamps", "--log-prefix", "--log-timestamps",
	"--jinja", "--no-jinja", "--context-shift", "--no-context-shift", "--metrics", "--slots", "--no-slots", "--props",
	"--no-warmup", "--warmup", "--mlock", "--no-mmap", "--cont-batching", "-cb", "--no-perf", "-v", "--verbose", "--log-verbose",
}

// quiet are the variables that change no row.
var quiet = []string{
	"LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "LLAMA_ARG_MODEL", "LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_N_PARALLEL", "LLAMA_ARG_THREADS",
	"LLAMA_ARG_CACHE_RAM", "LLAMA_ARG_SPEC_TYPE", "LLAMA_ARG_ENDPOINT_METRICS", "LLAMA_ARG_ENDPOINT_SLOTS", "LLAMA_ARG_NO_ENDPOINT_SLOTS", "LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE", "LLAMA_ARG_FIT_TARGET",
	"LLAMA_MEDIA_MARKER", "GGML_BACKEND_PATH",
}

// Numerics returns the arguments and the variables that may change rows of K and V: all that
// are not known to change none.
func (c Command) Numerics() []string {
	args := Command{Args: c.Args}.without(neutral...)
	args = slices.DeleteFunc(args, func(arg string) bool { return slices.Contains(silent, arg) })
	variables := c.variables()
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if !slices.Contains(quiet, name) {
			args = append(args, name+"="+variables[name])
		}
	}
	return args
}
