package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/ollama/ollama/manifest"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/cli/clitest"
	"github.com/kvtier/kvtier/internal/search/searchtest"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/listen"
)

func TestMain(m *testing.M) {
	os.Exit(testscript.RunMain(m, map[string]func() int{"kvtier": mainStatus, "llama-server": printCall}))
}

// script is a command of the scripts.
type script struct {
	args        string // how it is called; args in brackets may be left out, and ... stands for more of the last one
	least, most int    // numbers of args
	do          func(*testscript.TestScript, []string)
}

var scripts = map[string]script{
	"pages":   {"DIR MODEL SEED TOKENS [zstd] [remote=DIR] [budget=BYTES] [from=FILE] [read]", 4, 8, storePages}, // store a conversation
	"model":   {"NAME", 1, 1, pullModel},
	"flip":    {"FILE OFFSET", 2, 2, flipBit}, // from the end if it is negative
	"cut":     {"FILE BYTES", 2, 2, cutFile},  // keep the beginning of a file
	"old":     {"DIR AGE", 2, 2, makeOld},     // make files look unused
	"gguf":    {"FILE BYTES ARCH LAYERS KVHEADS DIM [KEY=N...]", 6, 99, writeHead},
	"rates":   {"DIR FINGERPRINT", 2, 2, writeRates},
	"counted": {"DIR SERIES=N...", 2, 99, countSeries}, // have the totals of a root keep counters
	"build":   {"FILE", 1, 1, buildKvtier},
	"report":  {"ROOT FILE", 2, 2, report}, // see parseReport
	"quit":    {"", 0, 0, quit},            // end the processes that report
	"folded":  {"ROOT", 1, 1, folded},      // wait until somebody has added them up
	"golden":  {"FILE", 1, 1, golden},      // compare output; see masks

	"embedder": {"[loaded=MODEL]", 0, 1, startEmbedder}, // be an Ollama with an embedding model
}

// TestScripts runs the command as users do, with the commands of scripts and exits STATUS PROGRAM ARGS.
func TestScripts(t *testing.T) {
	commands := map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits}
	for name, c := range scripts {
		commands[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			if neg || len(args) < c.least || len(args) > c.most {
				ts.Fatalf("usage: %s %s", name, c.args)
			}
			c.do(ts, args)
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"), Cmds: commands,
		Condition: func(name string) (bool, error) {
			if name == "unshared" {
				return exec.Command("unshare", "--mount", "--pid", "--fork", "--mount-proc", "true").Run() == nil, nil
			}
			return name == "root" && os.Geteuid() == 0, nil
		},
		Setup: func(env *testscript.Env) error {
			env.Values[labKey] = new(lab)
			for name, value := range map[string]string{
				"HOME": env.WorkDir, "OLLAMA_MODELS": filepath.Join(env.WorkDir, "models"),
				localVar: filepath.Join(env.WorkDir, "root"),
			} {
				env.Setenv(name, value)
			}
			return nil
		},
	})
}

// pageTokens is a page size that keeps pages small.
const pageTokens = 16

// identityOf is the identity of a model of the given name, with the weights that pullModel
// writes.
func identityOf(model string) map[string]string {
	return map[string]string{
		tierenv.KeySchema: tierenv.Schema, tierenv.KeyWeights: weightsDigest(model), tierenv.KeyCacheType: "f16",
		tierenv.KeyEngine: "engine", tierenv.KeyPageTokens: strconv.Itoa(pageTokens),
	}
}

func weightsDigest(model string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(model))) }

// sections are the sections of two layers.
func sections() []pagefile.Section {
	var list []pagefile.Section
	for layer := range uint16(2) {
		for _, kind := range []pagefile.Kind{pagefile.KindK, pagefile.KindV} {
			list = append(list, pagefile.Section{Layer: layer, Kind: kind, RowBytes: 512})
		}
	}
	return list
}

// storePages stores a conversation and, with read, reads it back. storePages sets the
// variables fingerprint, weights, first and last (keys), and page (the path of the last
// page).
func storePages(ts *testscript.TestScript, args []string) {
	read := false
	root := ts.MkAbs(args[0])
	identity := identityOf(args[1])
	opt := diskstore.Options{
		Fingerprint: tierenv.Fingerprint(identity), Identity: identity, PageTokens: pageTokens,
		Local: diskstore.TierConfig{Root: root},
	}
	for _, arg := range args[4:] {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "zstd":
			opt.Compress = true
		case "read":
			read = true
		case "remote":
			opt.Remote.Root = ts.MkAbs(value)
			ts.Check(os.MkdirAll(opt.Remote.Root, 0o700))
		case "from":
			opt.Origin = tierenv.Origin(ts.MkAbs(value))
		case "budget":
			opt.Local.BudgetBytes = number(ts, value)
		default:
			ts.Fatalf("pages: %s?", arg)
		}
	}
	tokens := conversation(int(number(ts, args[2])), int(number(ts, args[3])))
	keys, err := putConversation(context.Background(), opt, tokens, read)
	ts.Check(err)
	last := keys[len(keys)-1]
	ts.Setenv("fingerprint", opt.Fingerprint.String())
	ts.Setenv("weights", identity[tierenv.KeyWeights])
	ts.Setenv("first", keys[0].String())
	ts.Setenv("last", last.String())
	page, err := pageBelow(root, last)
	ts.Check(err)
	ts.Setenv("page", page)
}

// startEmbedder starts an Ollama with an embedding model, perhaps with another model in memory.
func startEmbedder(ts *testscript.TestScript, args []string) {
	o := &searchtest.Ollama{Models: []string{"all-minilm:latest"}}
	for _, arg := range args {
		loaded, ok := strings.CutPrefix(arg, "loaded=")
		if !ok {
			ts.Fatalf("embedder: %s?", arg)
		}
		o.Load(loaded)
	}
	server := httptest.NewServer(o)
	ts.Defer(server.Close)
	ts.Setenv("OLLAMA_HOST", server.URL)
}

// number is the number in a text.
func number(ts *testscript.TestScript, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	ts.Check(err)
	return n
}

// conversation returns n tokens, all below 100, that differ between seeds.
func conversation(seed, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32((seed*7 + i) % 90)
	}
	tokens[0] = int32(seed)
	return tokens
}

// kvtier runs a command line.
func kvtier(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return kvtierOn(t, host{}, args...)
}

// kvtierOn runs a command line on a host.
func kvtierOn(t *testing.T, h host, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	h.stdout, h.stderr = &out, &errs
	if h.machine != nil && h.served == nil {
		h.served = nowhere
	}
	status = runIn(t.Context(), h, args)
	return status, out.String(), errs.String()
}

// nowhere finds no service that kvtier is installed for.
func nowhere(context.Context) (install.Served, bool) { return install.Served{}, false }

// noVariables unsets the variables of a server, some of which the command sets.
func noVariables(t *testing.T) {
	for _, name := range []string{localVar, localGBVar, remoteVar, remoteGBVar, instanceVar, tierenv.TieringVariable, listen.Variable} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("OLLAMA_MODELS", t.TempDir())
}

// storeConversation stores 40 tokens of a model and returns their pages' keys. remote may be "".
func storeConversation(t *testing.T, identity map[string]string, local, remote string) []pagefile.Key {
	t.Helper()
	keys, err := putConversation(t.Context(), diskstore.Options{
		Fingerprint: tierenv.Fingerprint(identity), Identity: identity, PageTokens: pageTokens,
		Local: diskstore.TierConfig{Root: local}, Remote: diskstore.TierConfig{Root: remote},
	}, conversation(1, 40), false)
	require.NoError(t, err)
	return keys
}

// putConversation stores tokens, and with read reads them back. It returns the pages' keys.
func putConversation(ctx context.Context, opt diskstore.Options, tokens []int32, read bool) (keys []pagefile.Key, err error) {
	store, err := diskstore.Open(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	parent := opt.Fingerprint
	for at := 0; at < len(tokens); at += pageTokens {
		part := tokens[at:min(at+pageTokens, len(tokens))]
		layout, err := pagefile.NewLayout(sections(), len(part))
		if err != nil {
			return nil, err
		}
		page := pagefile.Page{Parent: parent, Start: uint32(at), Tokens: part, Layout: layout, Payload: make([]byte, layout.Size())}
		rng := rand.New(rand.NewPCG(uint64(part[0]), uint64(at)))
		for i := range layout.Sections() {
			rows := layout.Rows(page.Payload, i)
			for j := range rows[:len(rows)/2] { // the rest compresses well
				rows[j] = byte(rng.Uint32())
			}
		}
		if err := store.Put(ctx, &page); err != nil {
			return nil, err
		}
		parent = page.Key()
		keys = append(keys, parent)
	}
	if err = store.Flush(ctx); err == nil && read {
		err = readConversation(ctx, store, tokens)
	}
	return keys, err
}

// readConversation reads the pages that putConversation has stored.
func readConversation(ctx context.Context, store *diskstore.Store, tokens []int32) error {
	for _, ref := range store.Find(ctx, diskstore.Prompt{Tokens: tokens}).Exact {
		layout, err := pagefile.NewLayout(sections(), ref.Stored)
		if err != nil {
			return err
		}
		part := tokens[ref.Start : int(ref.Start)+ref.Tokens]
		if err := store.Read(ctx, ref, part, layout, diskstore.Into{Rows: make([]byte, layout.Size())}); err != nil {
			return err
		}
	}
	return nil
}

// pageBelow returns the path of a key's page below a root, "" if it is not there.
func pageBelow(root string, key pagefile.Key) (found string, err error) {
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) == key.String()+".kvp" {
			found = path
		}
		return err
	})
	return found, err
}

// pullModel writes a model into Ollama's store, as a pull does. The model's weights are a
// GGUF file with only a tokenizer, under the digest that identityOf has for the name.
func pullModel(ts *testscript.TestScript, args []string) {
	models := ts.Getenv("OLLAMA_MODELS")
	digest := weightsDigest(args[0])
	blob := filepath.Join(models, "blobs", "sha256-"+digest)
	ts.Check(os.MkdirAll(filepath.Dir(blob), 0o755))
	ts.Check(writeVocabulary(blob))
	text, err := json.Marshal(manifest.Manifest{SchemaVersion: 2, Layers: []manifest.Layer{
		{MediaType: "application/vnd.ollama.image.template", Digest: "sha256:" + weightsDigest("template")},
		{MediaType: "application/vnd.ollama.image.model", Digest: "sha256:" + digest},
	}})
	ts.Check(err)
	path := filepath.Join(models, "manifests", "registry.ollama.ai", "library", args[0], "latest")
	ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
	ts.Check(os.WriteFile(path, text, 0o644))
}

// writeVocabulary writes a GGUF file of 100 byte-level tokens, " w0" to " w99".
func writeVocabulary(path string) error {
	var tokens []string
	for i := range 100 {
		tokens = append(tokens, fmt.Sprintf("Ġw%d", i))
	}
	return testmodel.WriteFile(path, ggml.KV{
		"general.architecture": "qwen3", "qwen3.context_length": uint32(1024), "qwen3.block_count": uint32(2), "qwen3.embedding_length": uint32(256),
		"qwen3.attention.head_count": uint32(4), "qwen3.attention.head_count_kv": uint32(2),
		"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens,
	}, nil)
}

func flipBit(ts *testscript.TestScript, args []string) {
	at, path := int(number(ts, args[1])), ts.MkAbs(args[0])
	data, err := os.ReadFile(path)
	ts.Check(err)
	if at < 0 {
		at += len(data)
	}
	data[at] ^= 4
	ts.Check(os.WriteFile(path, data, 0o600))
}

func cutFile(ts *testscript.TestScript, args []string) {
	ts.Check(os.Truncate(ts.MkAbs(args[0]), number(ts, args[1])))
}

func makeOld(ts *testscript.TestScript, args []string) {
	d, err := age(args[1])
	ts.Check(err)
	then := time.Now().Add(-d)
	ts.Check(filepath.WalkDir(ts.MkAbs(args[0]), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, then, then)
	}))
}

// writeHead writes a model's file of a size, of which the disk holds the head alone.
func writeHead(ts *testscript.TestScript, args []string) {
	number := func(text string) uint32 { return uint32(number(ts, text)) }
	kv := ggml.KV{
		"general.architecture": args[2], "block_count": number(args[3]), "context_length": uint32(131072), "embedding_length": uint32(4096),
		"attention.head_count": uint32(32), "attention.head_count_kv": number(args[4]),
		"attention.key_length": number(args[5]), "attention.value_length": number(args[5]),
	}
	for _, arg := range args[6:] {
		key, value, _ := strings.Cut(arg, "=")
		kv[key] = number(value)
	}
	ts.Check(testmodel.WriteFile(ts.MkAbs(args[0]), kv, nil))
	cutFile(ts, args)
}

// writeRates writes rates as servers measure them: 1 ms for a token of a fingerprint, and 1 ms for
// a page from a root.
func writeRates(ts *testscript.TestScript, args []string) {
	root := ts.MkAbs(args[0])
	ts.Check(os.WriteFile(filepath.Join(root, "rates.json"), fmt.Appendf(nil, `{"version":2,
		"models":{"%s 0011223344556677":{"seen":1,"token_seconds":[[0,0.001],[4096,0.001]]}},
		"tiers":{%q:{"seen":1,"page_seconds":{"whole":[[262144,0.001]]}}}}`, args[1], root), 0o600))
}

// pushed tells the processes of countSeries apart.
var pushed atomic.Uint64

// countSeries has a process count series, and end.
func countSeries(ts *testscript.TestScript, args []string) {
	root := ts.MkAbs(args[0])
	source := &telemetry.Source{
		Process: telemetry.Process{PID: os.Getpid(), Start: pushed.Add(1), Engine: telemetry.EngineOllama}, Started: time.Now(),
		Model: telemetry.Model{Weights: weightsDigest("qwen"), Fingerprint: "f", CacheType: "f16", PageTokens: pageTokens}, Meter: new(telemetry.Meter),
	}
	for _, arg := range args[1:] {
		at := strings.LastIndex(arg, "=")
		n, err := strconv.ParseFloat(arg[at+1:], 64)
		ts.Check(err)
		source.Meter.Add(arg[:at], n)
	}
	push(ts, root, source)
	labOf(ts).end()
}
