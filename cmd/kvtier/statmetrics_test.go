package main

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// storeTotals lets a process report three prompts, of which two were restored, to a collector of
// the root. Both end, and leave the totals.
func storeTotals(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: totals DIR")
	}
	root := ts.MkAbs(args[0])
	source := &telemetry.Source{
		Process: telemetry.Process{PID: os.Getpid(), Engine: telemetry.EngineOllama},
		Started: time.Now(),
		Model:   telemetry.Model{Weights: strings.Repeat("ab12", 16), Fingerprint: strings.Repeat("0", 64), PageTokens: pageTokens},
		Meter:   new(telemetry.Meter),
	}
	for _, restored := range []int{100, 200, 0} {
		source.Meter.Prompt(telemetry.Prompt{At: time.Now(), Tokens: 300, Local: restored, Computed: 300 - restored, Restore: time.Millisecond})
	}
	collecting, end := context.WithCancel(context.Background())
	serving, served := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		served <- collect.Serve(collecting, root, collect.Options{OnServe: func() { serving <- struct{}{} }})
	}()
	select {
	case <-serving:
	case err := <-served:
		ts.Fatalf("collect: %v", err)
	}
	pushing, stop := context.WithCancel(context.Background())
	stop() // the last report alone
	collect.Push(pushing, root, source, collect.Options{Intervals: collect.Intervals{Last: time.Minute}})
	end()
	ts.Check(<-served)
}
