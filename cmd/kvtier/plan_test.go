package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/telemetry"
)

// writeHead writes a model's file of a size, of which the disk holds the head alone.
func writeHead(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 6 {
		ts.Fatalf("usage: gguf FILE BYTES ARCH LAYERS KVHEADS DIM [KEY=N]")
	}
	number := func(text string) uint32 {
		n, err := strconv.ParseUint(text, 10, 32)
		ts.Check(err)
		return uint32(n)
	}
	size, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	kv := ggml.KV{
		"general.architecture": args[2], "block_count": number(args[3]), "context_length": uint32(131072), "embedding_length": uint32(4096),
		"attention.head_count": uint32(32), "attention.head_count_kv": number(args[4]),
		"attention.key_length": number(args[5]), "attention.value_length": number(args[5]),
	}
	for _, arg := range args[6:] {
		key, value, _ := strings.Cut(arg, "=")
		kv[key] = number(value)
	}
	path := ts.MkAbs(args[0])
	ts.Check(testmodel.WriteFile(path, kv, nil))
	ts.Check(os.Truncate(path, size))
}

// writeRates writes rates as servers measure them: 1 ms for a token of a fingerprint, and 1 ms for
// a page from a root.
func writeRates(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: rates DIR FINGERPRINT")
	}
	root := ts.MkAbs(args[0])
	ts.Check(os.WriteFile(filepath.Join(root, "rates.json"), fmt.Appendf(nil, `{"version":1,
		"models":{"%s 0011223344556677":{"seen":1,"token_seconds":[[0,0.001],[4096,0.001]]}},
		"tiers":{%q:{"seen":1,"page_seconds":{"whole":[[262144,0.001]]}}}}`, args[1], root), 0o600))
}

// pushed tells the processes of countSeries apart.
var pushed atomic.Uint64

// countSeries has a process count series, and a collector that ends: its file then has them.
func countSeries(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: counted DIR SERIES=N...")
	}
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
	collectLast(ts, root, source)
}
