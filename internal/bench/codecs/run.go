package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/progress"
)

// Model is the model to measure with.
type Model struct {
	Path    string // GGUF file
	Context int    // longest sequence that the model was trained for, in tokens
	Decode  func(tokens []int32) (string, error)
}

// Question is asked after the text.
type Question struct {
	Question string `json:"question"`
	Answer   string `json:"answer"`
}

// Options of Run. All are required, except Questions, Steps and Threads.
type Options struct {
	Model     Model
	Text      string
	Tokens    int // tokens that are stored and restored; a multiple of PageTokens
	Scored    int // tokens after them whose probabilities are compared; a multiple of PageTokens
	Questions []Question
	Threads   int    // of the engine; 0: Ollama's choice
	Dir       string // gets a temporary directory, on the disk to measure
	Steps     *progress.Display
}

// PageTokens is the number of tokens of a page.
const PageTokens = lab.PageTokens

// Result is one encoding's figures. Rates are in GB (10⁹ bytes) of decoded rows per second.
type Result struct {
	Encoding string  `json:"encoding"`
	Lossless bool    `json:"lossless"`
	Ratio    float64 `json:"ratio"` // the rows' size over that of the encoded sections
	// Encode and Decode are per second that one core works. Encode is 0 of raw rows, which are stored
	// as they are.
	Encode float64 `json:"encode_gb_per_s"`
	Decode float64 `json:"decode_gb_per_s"`
	// Restore reads, checks and decodes page files that are not in the page cache, on all cores; 0
	// where the system cannot drop them from the page cache. RestoreCached reads files that are.
	Restore       float64 `json:"restore_gb_per_s"`
	RestoreCached float64 `json:"restore_cached_gb_per_s"`
	Quality
}

// Run measures all encodings. Run ends every process that it starts and removes all that it
// writes, also when ctx ends.
func Run(ctx context.Context, o Options) (results []Result, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "kvtier-codecs-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the pages: %w", err)
	}
	defer func() {
		if removeErr := os.RemoveAll(dir); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("remove the directory of the pages: %w", removeErr))
		}
	}()
	r, err := newRun(o, dir)
	if err != nil {
		return nil, err
	}
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"compute the text", r.compute},
		{"encode and decode", r.measureRates},
		{"read page files", r.measureFiles},
	} {
		if err := o.Steps.Do(part.name, func(*progress.Step) (string, error) { return "", part.do(ctx) }); err != nil {
			return nil, err
		}
	}
	return r.results, r.measureQuality(ctx)
}

func (o *Options) check() error {
	switch need := o.Tokens + o.Scored; {
	case o.Tokens < PageTokens || o.Scored < PageTokens || need%PageTokens != 0 || o.Tokens%PageTokens != 0:
		return fmt.Errorf("measure %d tokens and %d after them: both must be multiples of %d", o.Tokens, o.Scored, PageTokens)
	case strings.TrimSpace(o.Text) == "":
		return fmt.Errorf("measure with the text: it is empty; give a text of %d tokens or more", need)
	case o.Model.Context <= need:
		return fmt.Errorf("measure %d tokens with %s: its context has %d; choose another model, or fewer tokens", need, o.Model.Path, o.Model.Context)
	}
	return nil
}

// run is the state of one Run.
type run struct {
	Options
	dir     string
	pages   *pagefile.Codec
	codecs  []codec
	results []Result

	buffers   sync.Pool // for the rows of a page
	fileBytes int       // of the rows in a page file, at least

	kept      kept           // the first Tokens tokens, as the engine stored them
	pieces    []string       // text of each token of the text
	reference []distribution // after rows that never left the engine
}

// maxSectionBytes bounds a decoded section: the rows of a page in one layer.
const maxSectionBytes = 1 << 32

func newRun(o Options, dir string) (*run, error) {
	coder, err := encoding.NewCoder(maxSectionBytes)
	if err != nil {
		return nil, err
	}
	pages, err := pagefile.NewCodec()
	if err != nil {
		return nil, err
	}
	return &run{Options: o, dir: dir, pages: pages, codecs: codecs(coder, pages), fileBytes: fileBytes}, nil
}

// kept are the pages of the text's beginning.
type kept struct {
	fingerprint pagefile.Key
	identity    map[string]string
	pages       []pagefile.Page // with raw rows
}

// rows returns the bytes of all sections.
func (k *kept) rows() (n int64) {
	for _, p := range k.pages {
		for i := range p.Layout.Len() {
			n += int64(len(p.Layout.Rows(p.Payload, i)))
		}
	}
	return n
}
