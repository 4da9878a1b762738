package main

import (
	"flag"
	"fmt"
	"io"

	"github.com/kvtier/kvtier/internal/testmodel"
)

// recallArch is the value of -arch for the recall model. The architecture in its file is
// qwen3.
const recallArch = "recall"

// recall returns the recall model that the given flags describe. The circuit fixes the
// rest.
func recall(flags *flag.FlagSet, s testmodel.Shape) (testmodel.Recall, error) {
	r := testmodel.Recall{Seed: s.Seed}
	var err error
	flags.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "layers":
			r.Layers = s.Layers
		case "heads":
			r.Heads = s.Heads
		case "context":
			r.Context = s.Context
		case "embed", "kv-heads", "head-dim", "ffn", "vocab", "window":
			err = fmt.Errorf("the recall model has a fixed -%s; it takes -layers, -heads, -context and -seed", f.Name)
		}
	})
	if err != nil {
		return r, err
	}
	r = r.WithDefaults()
	return r, r.Validate()
}

func writeRecall(out, modelfile string, r testmodel.Recall, stdout io.Writer) error {
	return write(out, modelfile, r.Shape(), "recall as ", func() error { return testmodel.WriteRecall(out, r) }, stdout)
}
