package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/elastic/segment"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/table"
)

// held is the KV memory of one process and device, in the output of limit --json.
type held struct {
	Name     string        `json:"name"`
	Model    string        `json:"model,omitempty"`
	PID      int           `json:"pid,omitempty"`
	State    segment.State `json:"state"`
	Limit    int64         `json:"limit_bytes"`
	Used     int64         `json:"used_bytes"`
	Kept     int64         `json:"kept_bytes"`
	ReadOnly bool          `json:"read_only,omitempty"`

	weights string
	names   modelNames // that weights have
}

// is reports whether a name means this line.
func (h held) is(name string) bool {
	return h.Name == name || h.weights != "" && h.names.Has(h.weights, name)
}

const (
	// A process obeys, or puts its own limit back, within a round of obeyRound. It may take a few
	// to give back all that is over the limit.
	obeyRound = 400 * time.Millisecond
	obeyWait  = 2 * time.Second
	obeyLook  = 50 * time.Millisecond
)

func newLimitCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "limit [NAME SIZE]",
		Short: "List the KV memory that processes hold, and limit it while they run",
		Long: `List the KV memory that processes of this machine hold: those of an Ollama with
OLLAMA_KVCACHED=1, and vLLM and SGLang with kvcached. With a name and a size, set
the limit of one.

NAME is that of a line, or the name of a model that is in one line only. SIZE is a
number of bytes, or has a unit: 512M, 1.5G.

A lower limit takes nothing that is in use. Memory that is not in use goes first,
then that of conversations that nobody waits for, the oldest first; prompts that lack
memory wait for others to end. KEPT is memory for the next tokens, which counts too.`,
		Example: `  kvtier limit
  kvtier limit kvcached_4711_cpu 2G`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) == 2 {
				return nil
			}
			return cli.Usagef("give both a name and a size, or neither; kvtier limit lists the names")
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("timeout") {
				a.timeout = patienceFor(cmd.Name())
			}
			if len(args) == 0 {
				return a.listHeld()
			}
			return a.limit(cmd.Context(), args[0], args[1])
		},
	}
}

// heldMemory are the segments of this machine.
func (a *app) heldMemory() ([]held, error) {
	segments, err := segment.List()
	if err != nil {
		return nil, err
	}
	stores := make(map[string]modelNames) // by directory
	out := make([]held, 0, len(segments))
	for _, s := range segments {
		if s.State == segment.Dead {
			continue // a runner removes it
		}
		h := held{Name: s.Name, PID: s.PID, State: s.State, Limit: s.Limit, Used: s.Used, Kept: s.Kept, ReadOnly: s.ReadOnly}
		if dir, weights := weightsOfRunner(s.PID); weights != "" {
			if _, ok := stores[dir]; !ok {
				stores[dir] = a.namesIn(dir)
			}
			h.Model, h.weights, h.names = stores[dir].nameOf(weights, ""), weights, stores[dir]
		}
		out = append(out, h)
	}
	return out, nil
}

// weightsOfRunner is the digest of the model that a runner has loaded and the directory of its
// models, by its command line; "" for other processes.
func weightsOfRunner(pid int) (dir, weights string) {
	if pid == 0 {
		return "", ""
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "", ""
	}
	args := bytes.Split(line, []byte{0})
	for i, arg := range args {
		if string(arg) == "--model" && i+1 < len(args) {
			blob := string(args[i+1])
			weights, _ = strings.CutPrefix(filepath.Base(blob), "sha256-")
			return filepath.Dir(filepath.Dir(blob)), weights
		}
	}
	return "", ""
}

func (a *app) listHeld() error {
	all, err := a.heldMemory()
	if err != nil {
		return err
	}
	if a.asJSON {
		return a.json(all)
	}
	a.printHeld(all)
	return nil
}

func (a *app) printHeld(all []held) {
	if len(all) == 0 {
		fmt.Fprintln(a.stdout, "No process holds KV memory that can be limited; an Ollama with OLLAMA_KVCACHED=1 does while a model is loaded.")
		return
	}
	var rows [][]string
	for _, h := range all {
		pid := "-"
		if h.PID != 0 {
			pid = strconv.Itoa(h.PID)
		}
		model := h.Model
		if model == "" {
			model = "-"
		}
		state := string(h.State)
		if h.ReadOnly {
			state += ", read only"
		}
		rows = append(rows, []string{printable(h.Name), printable(model), pid, format.HumanBytes2(uint64(max(0, h.Used))), format.HumanBytes2(uint64(max(0, h.Kept))),
			format.HumanBytes2(uint64(h.Limit)), state})
	}
	table.Print(a.stdout, []string{"name", "model", "pid", "used", "kept", "limit", "state"}, rows)
}

// limit sets a limit, and shows the memory that is held then.
func (a *app) limit(ctx context.Context, name, size string) error {
	bytes, err := memorySize(size)
	if err != nil {
		return cli.Usage(err)
	}
	all, err := a.heldMemory()
	if err != nil {
		return err
	}
	target, err := oneHeld(all, name)
	if err != nil {
		return err
	}
	if err := segment.SetLimit(target.Name, bytes); err != nil {
		return err
	}
	now, err := awaitObeyed(ctx, target, bytes)
	if err != nil {
		return err
	}
	if a.asJSON {
		return a.json(now)
	}
	a.printHeld([]held{now})
	if now.Used+now.Kept > now.Limit {
		fmt.Fprintln(a.stderr, "More is in use than the limit: requests that run keep theirs until they end.")
	}
	return nil
}

// oneHeld finds a segment by its name, or by that of its model.
func oneHeld(all []held, name string) (held, error) {
	var of []string
	var found held
	for _, h := range all {
		switch {
		case h.Name == name:
			return h, nil
		case h.is(name):
			found, of = h, append(of, h.Name)
		}
	}
	switch len(of) {
	case 0:
		return held{}, fmt.Errorf("segment %s: %w", name, segment.ErrNoSegment)
	case 1:
		return found, nil
	}
	return held{}, fmt.Errorf("model %s is in more than one line (%s); give the name of one", name, strings.Join(of, ", "))
}

// awaitObeyed returns the memory of a process once it is within the limit, or after a while. The error
// says that the limit is not in force.
func awaitObeyed(ctx context.Context, h held, limit int64) (held, error) {
	ctx, cancel := context.WithTimeout(ctx, obeyWait)
	defer cancel()
	began := time.Now()
	tick := time.NewTicker(obeyLook)
	defer tick.Stop()
	for {
		s, err := segment.Get(h.Name)
		if errors.Is(err, segment.ErrNoSegment) || err == nil && s.State == segment.Dead {
			return h, fmt.Errorf("segment %s: %w", h.Name, segment.ErrDead)
		}
		if err == nil {
			h.Limit, h.Used, h.Kept, h.State = s.Limit, s.Used, s.Kept, s.State
			if s.InForce == limit && s.Limit == limit && s.Used+s.Kept <= limit && time.Since(began) > obeyRound {
				return h, nil
			}
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		switch {
		case err != nil:
			return h, fmt.Errorf("segment %s: %w", h.Name, err)
		case s.Limit != limit:
			return h, fmt.Errorf("segment %s: the limit is %s, which its process or another program has put in place of %s", h.Name, format.HumanBytes2(uint64(s.Limit)), format.HumanBytes2(uint64(limit)))
		case s.InForce != limit:
			return h, fmt.Errorf("segment %s: the limit is set, and its process does not obey; it may be stopped, or busy loading", h.Name)
		}
		return h, nil
	}
}

// memoryUnits are the units of sizes, as kvcached's tools have them.
var memoryUnits = map[string]float64{
	"": 1, "b": 1,
	"k": 1 << 10, "kb": 1 << 10, "ki": 1 << 10, "kib": 1 << 10,
	"m": 1 << 20, "mb": 1 << 20, "mi": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gi": 1 << 30, "gib": 1 << 30,
	"t": 1 << 40, "tb": 1 << 40, "ti": 1 << 40, "tib": 1 << 40,
}

// memorySize reads a size such as 512M, 1.5G or 1.5GiB.
func memorySize(s string) (int64, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz")
	n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	scale, ok := memoryUnits[text[len(digits):]]
	if size := n * scale; err == nil && ok && size >= 1 && size <= float64(segment.LimitMax) {
		return int64(size), nil
	}
	return 0, fmt.Errorf("%q is not a size of memory; give one such as 512M or 1.5G", s)
}
