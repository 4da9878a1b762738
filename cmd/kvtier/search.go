package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ollama/ollama/envconfig"
	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/memory"
	"github.com/kvtier/kvtier/internal/modelfile"
	"github.com/kvtier/kvtier/internal/search"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// searched is the output of search --json.
type searched struct {
	Words     string  `json:"words"`
	Embedder  string  `json:"embedder"`
	Threshold float64 `json:"threshold"`
	Best      float64 `json:"best_score"` // of all pages; -1 without vectors
	Texts     int     `json:"texts_embedded"`
	Vectors   int     `json:"vectors_held"`
	Pages     int     `json:"pages"`
	Indexed   int     `json:"pages_with_vectors"`
	Hits      int     `json:"hits"`         // pages that score the threshold or more
	Chosen    int     `json:"pages_chosen"` // one of each conversation
	Full      bool    `json:"full"`         // there is no room for more vectors
	Beyond    int     `json:"pages_beyond"` // that were not looked at

	Found   []foundThere   `json:"found"`
	Skipped []skippedPages `json:"skipped"`
}

type foundThere struct {
	Model        string  `json:"model"`
	Fingerprint  string  `json:"fingerprint"`
	Conversation string  `json:"conversation"` // key of its last page
	Page         string  `json:"page"`
	First        int     `json:"first"` // position
	Last         int     `json:"last"`
	Stored       int     `json:"stored_tokens"`
	Tokens       int     `json:"tokens"`
	Score        float64 `json:"score"`
	Text         string  `json:"text"`
}

type skippedPages struct {
	Model       string `json:"model"`
	Fingerprint string `json:"fingerprint"`
	Pages       int    `json:"pages"`
	Why         string `json:"why"`
}

type searchFlags struct {
	embedder   string
	threshold  float64
	top, texts int
	force      bool
}

const (
	giveScore = "a number above 0, at most 1"
	topMost   = 1000
	textsMost = 100_000_000
)

func newSearchCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	f := searchFlags{embedder: "all-minilm", top: 5, texts: 4000}
	cmd := &cobra.Command{
		Use:   "search WORDS...",
		Short: "Find stored conversations by meaning",
		Long: `Find conversations in the local tier by what they are about. An embedding model of
your Ollama turns their text into vectors, a page once: these are kept beside the
pages, and go with them. Nothing is computed but by this command.

CONVERSATION is the beginning of the key of its last page, which kvtier inspect and
kvtier export --key take. TOKENS are the positions of the text that is nearest to
the words, STORED how much of the conversation the local tier has.

Without --threshold, a conversation is found if a text of it scores far more than
unrelated text does for these words.

Each run embeds texts of pages used last first, at most --texts of them; run it again
for the rest. Ctrl-C keeps the vectors made so far. Ollama runs the embedding model
on the CPU. kvtier does not load it where Ollama may unload another model for it,
unless you give --force.`,
		Example: `  ollama pull all-minilm
  kvtier search bread that does not rise
  kvtier search --embedder nomic-embed-text --top 20 "interest rates"`,
		Args: cli.Args(1, 100, "say what the conversation is about"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd.Flags().Changed("threshold")); err != nil {
				return err
			}
			return f.run(cmd.Context(), out, at, models, strings.Join(args, " "))
		},
	}
	cli.Flag(cmd.Flags(), &f.embedder, "embedder", giveModel, "embedding model of your Ollama")
	cli.Flag(cmd.Flags(), &f.threshold, "threshold", giveScore, "least score that counts, instead of one measured for the words")
	cli.Flag(cmd.Flags(), &f.top, "top", fmt.Sprintf("1 to %d", topMost), "conversations to show")
	cli.Flag(cmd.Flags(), &f.texts, "texts", fmt.Sprintf("0 to %d", textsMost), "texts to embed in this run")
	cmd.Flags().BoolVar(&f.force, "force", false, "also where Ollama may unload another model for the embedding model")
	return cmd
}

func (f searchFlags) check(threshold bool) error {
	switch {
	case threshold && !(f.threshold > 0 && f.threshold <= 1):
		return cli.Usagef("--threshold is %v; give %s", f.threshold, giveScore)
	case f.top < 1 || f.top > topMost:
		return cli.Usagef("--top is %d; give 1 to %d", f.top, topMost)
	case f.texts < 0 || f.texts > textsMost:
		return cli.Usagef("--texts is %d; give 0 to %d", f.texts, textsMost)
	}
	return nil
}

func (f searchFlags) run(ctx context.Context, out *output, at *storage, models *modelStore, words string) error {
	names := models.names()
	var result *search.Result
	var done searched
	err := at.with(ctx, func(root *roots) error {
		bars := out.bars()
		defer bars.Close()
		s := &search.Search{
			Embedder: f.ollama(), Pages: root.Local, Put: root.PutVectors,
			Texts: f.texts, Top: f.top, Threshold: f.threshold,
			Decoder: func(ctx context.Context, fingerprint pagefile.Key) (search.Decoder, error) {
				return vocabulary(ctx, root, models, fingerprint)
			},
		}
		if bars != nil {
			step := bars.Step("texts embedded")
			s.Progress = func(done, total int) { step.Progress(int64(done), int64(total)) }
		}
		var err error
		if result, err = s.Run(ctx, words); result != nil {
			done = f.describe(ctx, root, names, words, result)
		}
		return err
	})
	if result == nil {
		return err
	}
	return cmp.Or(out.show(done, func(w io.Writer) { done.print(w, out.stderr, at.config.Local) }), err)
}

// ollama is the embedding model, with what is known of its server.
func (f searchFlags) ollama() *search.Ollama {
	at := envconfig.Host()
	o := &search.Ollama{URL: strings.TrimSuffix(strings.Replace(at.String(), "0.0.0.0", "127.0.0.1", 1), "/"), Model: f.embedder, Force: f.force}
	if here(at) {
		o.LoadedMax, _ = strconv.Atoi(os.Getenv("OLLAMA_MAX_LOADED_MODELS")) // 0: not known
		o.Available = memory.Available
	}
	return o
}

// here reports whether an address is certainly of this machine.
func here(at *url.URL) bool {
	return slices.Contains([]string{"127.0.0.1", "0.0.0.0", "::1", "localhost"}, at.Hostname())
}

// vocabulary opens the vocabulary of the model whose pages have a fingerprint.
func vocabulary(ctx context.Context, root *roots, models *modelStore, fingerprint pagefile.Key) (search.Decoder, error) {
	m, err := root.Manifest(ctx, fingerprint)
	if err != nil {
		return nil, errors.New("nothing says which model they are of; run kvtier repair, or load the model")
	}
	weights := m.Identity[tierenv.KeyWeights]
	path := models.blob(weights)
	if _, blobs, ok := strings.Cut(m.Origin, " "); path == "" && ok && filepath.IsAbs(blobs) {
		path = filepath.Join(blobs, "sha256-"+weights)
	}
	if path == "" && filepath.IsAbs(m.Origin) {
		path = m.Origin
	}
	if path == "" {
		return nil, errors.New("the model's file, which has the vocabulary, is not found; give the directory of Ollama's models as --models")
	}
	return modelfile.OpenDecoder(path)
}

func (f searchFlags) describe(ctx context.Context, root *roots, names modelNames, words string, r *search.Result) searched {
	out := searched{
		Words: words, Embedder: f.embedder, Threshold: r.Threshold, Best: r.Best, Texts: r.Embedded, Vectors: r.Vectors,
		Pages: r.Pages, Indexed: r.Indexed, Hits: r.Hits, Chosen: len(r.Found), Full: r.Full, Beyond: r.Beyond,
		Found: []foundThere{}, Skipped: []skippedPages{},
	}
	named := func(fingerprint pagefile.Key) string {
		m, err := root.Manifest(ctx, fingerprint)
		if err != nil {
			return "unknown"
		}
		return names.of(m.Identity)
	}
	for _, h := range r.Found {
		out.Found = append(out.Found, foundThere{
			Model: named(h.Fingerprint), Fingerprint: h.Fingerprint.String(), Conversation: h.Conversation.String(), Page: h.Page.String(),
			First: h.First, Last: h.Last, Stored: h.Stored, Tokens: h.Tokens, Score: h.Score, Text: h.Text,
		})
	}
	for _, s := range r.Skipped {
		out.Skipped = append(out.Skipped, skippedPages{named(s.Fingerprint), s.Fingerprint.String(), s.Pages, s.Why})
	}
	return out
}

// excerptMost is the length of a text under the table, in characters.
const excerptMost = 300

func (out searched) print(w, notes io.Writer, place string) {
	switch {
	case out.Pages == 0:
		fmt.Fprintln(notes, "no pages are stored in "+place)
		return
	case len(out.Found) > 0:
		printTable(w, []string{"MODEL", "CONVERSATION", "TOKENS", "STORED", "SCORE"}, rowsOf(out.Found, func(h foundThere) []string {
			return []string{h.Model, short(h.Conversation), count(h.First) + " to " + count(h.Last), count(h.Stored) + " of " + count(h.Tokens), score(h.Score)}
		}))
		for _, h := range out.Found {
			if text := []rune(excerpt(h.Text)); len(text) > 0 {
				fmt.Fprintf(w, "\n%s\n", short(h.Conversation))
				paragraph(w, "“"+string(text[:min(len(text), excerptMost)])+"”")
			}
		}
		fmt.Fprintln(w)
	case out.Indexed > 0:
		fmt.Fprintf(w, "Nothing is stored about these words: the best score is %s. --threshold %s shows it.\n", score(out.Best), score(max(out.Best-0.005, 0.01)))
	}
	out.printCounts(w)
}

// score prints a score. A threshold is printed alike.
func score(s float64) string { return fmt.Sprintf("%.2f", s) }

func (out searched) printCounts(w io.Writer) {
	wrapped(w, "", fmt.Sprintf("%s embedded, %s held, %s of %s looked through, %s of them with a score of %s or more, %s shown.",
		plural(out.Texts, "text"), plural(out.Vectors, "vector"), count(out.Indexed), plural(out.Pages, "page"), count(out.Hits), score(out.Threshold), count(out.Chosen)))
	for _, s := range out.Skipped {
		wrapped(w, "", fmt.Sprintf("Left out: %s of %s. %s.", plural(s.Pages, "page"), s.Model, upper(s.Why)))
	}
	left := out.Pages - out.Indexed
	for _, s := range out.Skipped {
		left -= s.Pages
	}
	switch {
	case out.Full:
		wrapped(w, "", fmt.Sprintf("No room is left for the vectors of %s; raise the budget.", plural(left, "page")))
	case left > 0:
		wrapped(w, "", fmt.Sprintf("%s have no vectors yet: run the command again, or give --texts.", plural(left, "page")))
	}
	if out.Beyond > 0 {
		wrapped(w, "", fmt.Sprintf("%s more were not looked at.", plural(out.Beyond, "page")))
	}
}

func upper(s string) string { return strings.ToUpper(s[:min(1, len(s))]) + s[min(1, len(s)):] }
