// Package launch reads the command line and the environment of llama-server, as far as a
// server between llama-server and its clients must know them.
package launch

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Command is how somebody starts llama-server.
type Command struct {
	Args    []string // without the name of the program
	Environ []string // all variables, as in os.Environ
}

// value returns the value of an option, and whether the option is set. Of several flags the
// last one counts, as in llama-server; a flag counts before a variable.
func (c Command) value(o Option) (string, bool) {
	for i, arg := range slices.Backward(c.Args) {
		switch {
		case o.unsets(arg):
			return "0", true
		case !o.sets(arg):
		case o.Values == 0:
			return "1", true
		case i+1 < len(c.Args):
			return c.Args[i+1], true
		}
	}
	set := c.variables()
	if _, off := set[o.offEnv()]; off {
		return "0", true
	}
	return set[o.Env], set[o.Env] != ""
}

// on reports whether an option without a value is set, or has a value that is true.
func (c Command) on(o Option) bool { return c.onOr(o, false) }

// onOr does as on, with what holds where nothing sets the option.
func (c Command) onOr(o Option, usually bool) bool {
	if value, ok := c.value(o); ok {
		return !slices.Contains([]string{"0", "off", "false", "disabled"}, strings.ToLower(value))
	}
	return usually
}

// any reports whether one of some options is set.
func (c Command) any(options ...Option) bool {
	return slices.ContainsFunc(options, func(o Option) bool {
		_, ok := c.value(o)
		return ok
	})
}

// Serves reports whether llama-server will answer prompts of one model. Otherwise
// llama-server prints something and ends, computes embeddings, or is a router.
func (c Command) Serves() bool {
	return !c.any(reports...) && !c.on(embedding) && !c.on(reranking) && c.any(model, modelURL, repository)
}

// Chats reports whether llama-server may answer prompts, of one model or of several, also where Serves does not know
// the model.
func (c Command) Chats() bool {
	return !c.any(reports...) && !c.on(embedding) && !c.on(reranking) && !c.Looks()
}

// Routes reports whether llama-server is a router, which starts a llama-server of its own for each
// model: nothing names a model.
func (c Command) Routes() bool {
	named := slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--") && ownModel(normal(arg)) })
	return !named && !c.any(reports...) && !c.any(model, modelURL, repository, docker) && c.configured() == ""
}

// Looks reports whether Ollama starts a router to see which devices there are, and ends it at once. No model
// will be loaded.
func (c Command) Looks() bool { return c.Routes() && c.on(offline) && !c.onOr(ui, true) }

// RouterRemedy says how to store what a router's models compute.
const RouterRemedy = "without a model llama-server is a router, before whose models kvtier cannot stand; run kvtier serve -- llama-server -m model.gguf for each model"

// Hidden returns the reason why no other server can stand before this llama-server, or "".
func (c Command) Hidden() string {
	name, _ := c.value(host)
	switch {
	case c.any(certificate):
		return "it answers by TLS"
	case c.any(prefix):
		return "its addresses have a prefix"
	case strings.Contains(name, ","):
		return "it listens on several addresses"
	case strings.HasSuffix(name, ".sock"):
		return "it listens on a Unix socket"
	case slices.Contains(c.Environ, "AIP_MODE=PREDICTION"):
		return "its port is that of AIP_HTTP_PORT"
	}
	if path := c.configured(); path != "" {
		return "options of it are in " + path
	}
	return ""
}

// Unstorable returns the reason why slots of this llama-server cannot be stored, or "".
func (c Command) Unstorable() string {
	reuse, reuses := c.value(cacheReuse)
	seconds, sleeps := c.value(sleep)
	switch {
	case c.any(savePath):
		return "--slot-save-path is in use"
	case reuses && reuse != "0":
		return "--cache-reuse moves rows to other positions"
	case c.on(fullWindow):
		return "--swa-full keeps windows in another form"
	case !c.onOr(cachePrompt, true):
		return "--no-cache-prompt computes each prompt anew"
	case sleeps && seconds != "-1":
		return "--sleep-idle-seconds loads the model again, from a file that may be another one by then"
	}
	for _, name := range append(slices.Clone(c.Args), slices.Collect(maps.Keys(c.variables()))...) {
		flag := "--" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(name, "LLAMA_ARG_"), "--"), "_", "-"))
		switch {
		case strings.HasPrefix(flag, "--spec-synth"):
			return "drafts are taken by chance, so that they decide the answer"
		case ownModel(flag) && strings.HasPrefix(name, "--"):
			return "it names a model of its own"
		case strings.HasPrefix(flag, "--lora-scaled"), strings.HasPrefix(flag, "--control-vector"):
			return "the content of a file that it names is not known"
		}
	}
	if c.Model() == "" || c.any(modelURL, repository, docker) || split.MatchString(c.Model()) {
		return "the model is not one file with a name"
	}
	return ""
}

// ownModel reports whether a flag stands for a model that llama-server downloads.
func ownModel(flag string) bool {
	return flag != specDefault && (strings.HasSuffix(flag, "-default") || strings.HasPrefix(flag, "--fim-"))
}

// Drafts reports whether llama-server may draft tokens with rows that are in no file of a slot: a type of
// drafts or a draft model is named.
func (c Command) Drafts() bool {
	if name := c.variables()[specType.Env]; name != "" && name != noDrafts {
		return true
	}
	for i, arg := range c.Args {
		if normal(arg) == specDefault || specType.sets(arg) && (i+1 == len(c.Args) || c.Args[i+1] != noDrafts) {
			return true
		}
	}
	return c.any(draft, draftRepository)
}

// SharesDrafts returns the reason for which drafts tell of the texts of other requests, or "": their speed does.
func (c Command) SharesDrafts() string {
	name := c.variables()[specType.Env]
	for i, arg := range c.Args {
		switch {
		case normal(arg) == specDefault:
			return specDefault + " makes drafts from the texts of all requests"
		case specType.sets(arg) && i+1 < len(c.Args):
			name += "," + c.Args[i+1]
		}
	}
	for _, kind := range []string{"ngram-mod", "ngram-cache"} {
		if strings.Contains(name, kind) {
			return "--spec-type " + kind + " makes drafts from the texts of all requests"
		}
	}
	return ""
}

// split matches the name of a part of a model.
var split = regexp.MustCompile(`-[0-9]{5}-of-[0-9]{5}\.gguf$`)

// variables are the variables of llama-server, ggml and mtmd, which computes images, that are set.
func (c Command) variables() map[string]string {
	set := make(map[string]string)
	for _, v := range c.Environ {
		name, value, _ := strings.Cut(v, "=")
		if slices.ContainsFunc([]string{"LLAMA_", "GGML_", "MTMD_"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			set[name] = value
		}
	}
	return set
}

// Model returns the path of the model's file, "" where llama-server downloads the model.
func (c Command) Model() string {
	path, _ := c.value(model)
	return path
}

// Projector returns the path of the file that computes images and sounds, "" where llama-server finds it
// itself, and how they are computed: where, and in which batches, because in some models the tokens of an
// image also attend to those behind them, in the same batch alone.
func (c Command) Projector() (path, how string) {
	path, _ = c.value(projector)
	var values []string
	for _, o := range []Option{projectorOffload, projectorDevice, batch, microBatch} {
		value, _ := c.value(o)
		values = append(values, value)
	}
	return path, strings.Join(values, " ")
}

// Behind returns the arguments for the same llama-server on a Unix socket. With saveTo, slots
// are saved below that directory.
func (c Command) Behind(socket, saveTo string) []string {
	args := c.without(host, port)
	if saveTo != "" {
		// With a cache in memory, a request for a busy slot can replace the slot's sequence.
		args = append(c.without(host, port, cacheRAM, slots.opposite(), shift.opposite()), "--slot-save-path", saveTo, "--cache-ram", "0")
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
func (c Command) without(options ...Option) []string {
	var args []string
	for i := 0; i < len(c.Args); i++ {
		at := slices.IndexFunc(options, func(o Option) bool { return o.sets(c.Args[i]) })
		if at < 0 {
			args = append(args, c.Args[i])
		} else {
			i += options[at].Values
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
		if device || strings.HasPrefix(name, "LLAMA_ARG_") && name != host.Env && name != port.Env {
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

// Pings is the time between two comments in a stream that is silent: 30 s, unless llama-server is told another
// one. At most 0 is none.
func (c Command) Pings() time.Duration {
	return time.Duration(c.number(pings, 30)) * time.Second
}

// Infill returns what decides how llama-server shortens a text with a gap, and whether what is behind the gap
// comes first.
func (c Command) Infill() (batchSize, predicted int, suffixFirst bool) {
	return c.number(batch, 2048), c.number(predict, -1), c.on(spmInfill)
}

// number returns the value of an option, and what holds where nothing sets it.
func (c Command) number(o Option, usually int) int {
	value, _ := c.value(o)
	if n, err := strconv.Atoi(value); err == nil {
		return n
	}
	return usually
}

// Similarity is the part of a prompt that llama-server must find in a slot to choose the slot for it. At 0 the slot
// unused for longest is chosen.
func (c Command) Similarity() float64 {
	value, _ := c.value(similarity)
	if part, err := strconv.ParseFloat(value, 32); err == nil {
		return part
	}
	return 0.1
}

// Slots reports whether clients may look at the slots, as they may unless they are told not to.
func (c Command) Slots() bool { return c.onOr(slots, true) }

// Shifts reports whether llama-server may shift the context of a slot that is full. It does not
// unless it is told to.
func (c Command) Shifts() bool { return c.on(shift) }

// Adapters returns the paths of the model's adapters.
func (c Command) Adapters() []string {
	var paths []string
	for i, arg := range c.Args[:max(0, len(c.Args)-1)] {
		if adapter.sets(arg) {
			paths = append(paths, strings.Split(c.Args[i+1], ",")...)
		}
	}
	return paths
}

// Numerics returns the arguments and the variables that may change rows of K and V: all that are not known to
// change none. Where only a draft model is named, llama-server takes the type of drafts from its file.
func (c Command) Numerics() []string {
	list := c.having(Always)
	if c.Drafts() && !slices.ContainsFunc(list, func(arg string) bool {
		return specType.sets(arg) || normal(arg) == specDefault || strings.HasPrefix(arg, specType.Env+"=")
	}) {
		list = append(list, "drafts")
	}
	return list
}

// Split returns the arguments and the variables that decide which devices compute which layers.
func (c Command) Split() []string { return c.having(Split) }

// having returns the arguments and the variables with an effect.
func (c Command) having(effect Effect) []string {
	var list []string
	for i := 0; i < len(c.Args); {
		o, rows, _ := ByFlag(c.Args[i])
		next := min(i+1+o.Values, len(c.Args))
		if rows == effect && !(specType.sets(c.Args[i]) && c.Args[next-1] == noDrafts) {
			list = append(list, c.Args[i:next]...)
		}
		i = next
	}
	set := c.variables()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if rows, _ := byVariable(name); rows == effect && !(name == specType.Env && set[name] == noDrafts) {
			list = append(list, name+"="+set[name])
		}
	}
	return list
}

// Unknown returns the flags and the variables that are in no group of options. They count as
// ones that change rows.
func (c Command) Unknown() []string {
	var names []string
	for i := 0; i < len(c.Args); i++ {
		o, _, known := ByFlag(c.Args[i])
		if !known && isFlag.MatchString(c.Args[i]) {
			names = append(names, c.Args[i])
		}
		i += o.Values
	}
	for _, name := range slices.Sorted(maps.Keys(c.variables())) {
		if _, known := byVariable(name); !known {
			names = append(names, name)
		}
	}
	return names
}

// isFlag matches a flag, and no value of an unknown one.
var isFlag = regexp.MustCompile(`^--?[A-Za-z]`)

// llama-server also reads options from files that nobody names. They count where neither a
// variable nor an argument sets an option.

// configured returns the path of such a file with options, "" if there is none.
func (c Command) configured() string {
	for _, path := range c.configFiles() {
		text, err := os.ReadFile(path)
		if err == nil && optionLine.Match(text) {
			return path
		}
	}
	return ""
}

// configFiles returns the paths of the files, in llama.cpp's common/arg.cpp.
func (c Command) configFiles() []string {
	set := make(map[string]string)
	for _, v := range c.Environ {
		name, value, _ := strings.Cut(v, "=")
		set[name] = value
	}
	home, own := set["HOME"], set["XDG_CONFIG_HOME"]
	if home == "" && own == "" {
		if u, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil {
			home = u.HomeDir
		}
	}
	own = cmp.Or(own, filepath.Join(home, ".config"))
	return []string{"/etc/llama.cpp/config.ini", filepath.Join(own, "llama.cpp", "config.ini")}
}

// optionLine matches a line of such a file other than comments and the names of sections.
var optionLine = regexp.MustCompile(`(?m)^\s*[^\s;#\[]`)

// oldPort is the port of llama-server, up to b11520, where nothing names one. Later ones have 9931.
const oldPort = 8080

// Bounds of a look at llama-server's help.
const (
	helpTimeout = 5 * time.Second
	helpGrace   = 100 * time.Millisecond // for others who hold its output
	helpBytes   = 1 << 20
)

// Address returns the host and the port on which llama-server is asked to listen. Where nothing
// names a port, it is the default of the llama-server real.
func (c Command) Address(real string) (name string, number int, err error) {
	name = "127.0.0.1"
	if v, ok := c.value(host); ok {
		name = v
	}
	if v, ok := c.value(port); ok {
		number, err = strconv.Atoi(v)
		return name, number, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), helpTimeout)
	defer cancel()
	return name, defaultPort(ctx, real, c.Environ), nil
}

// defaultPort asks a llama-server for the port of which its help says that it is the default.
func defaultPort(ctx context.Context, real string, environ []string) int {
	var help limited
	cmd := exec.CommandContext(ctx, real, "--help")
	cmd.Env, cmd.Stdout, cmd.WaitDelay = environ, &help, helpGrace
	_ = cmd.Run() // what it has printed by then counts
	if m := portDefault.FindStringSubmatch(help.text.String()); m != nil {
		number, _ := strconv.Atoi(m[1]) // the pattern has digits only
		return cmp.Or(number, oldPort)
	}
	return oldPort
}

// limited refuses text beyond helpBytes, which ends the program that writes it.
type limited struct{ text bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.text.Len()+len(p) > helpBytes {
		return 0, io.ErrShortWrite
	}
	return l.text.Write(p)
}

// portDefault matches the default of --port in a help, before the next option.
var portDefault = regexp.MustCompile(`(?m)^--port\b(?:[^\n]|\n+[^-\n])*?default:\s+([0-9]{1,5})\b`)
