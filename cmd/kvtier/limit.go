package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/elastic/segment"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/sizing"
)

// held is the KV memory of one process and device, in the output of limit --json.
type held struct {
	Name      string        `json:"name"`
	Model     string        `json:"model,omitempty"`
	PID       int           `json:"pid,omitempty"`
	State     segment.State `json:"state"`
	Limit     int64         `json:"limit_bytes"`
	Used      int64         `json:"used_bytes"`
	Kept      int64         `json:"kept_bytes"`
	Available int64         `json:"available_bytes"` // of Limit, what is not Used
	ReadOnly  bool          `json:"read_only,omitempty"`

	weights string
	names   modelNames // that weights have
}

const (
	// A process obeys, or puts its own limit back, within a round of obeyRound. It may take a few
	// to give back all that is over the limit.
	obeyRound = 400 * time.Millisecond
	obeyWait  = 2 * time.Second
	obeyLook  = 50 * time.Millisecond
)

func newLimitCommand(out *output, models *modelStore) *cobra.Command {
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
			all, err := heldMemory(models)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return out.show(all, func(w io.Writer) { printHeld(w, all) })
			}
			now, err := limit(cmd.Context(), all, args[0], args[1])
			if err != nil {
				return err
			}
			err = out.show(now, func(w io.Writer) { printHeld(w, []held{now}) })
			if now.Used+now.Kept > now.Limit && !out.asJSON {
				fmt.Fprintln(out.stderr, "More is in use than the limit: requests that run keep theirs until they end.")
			}
			return err
		},
	}
}

// see takes over what changes of a segment.
func (h *held) see(s segment.Segment) {
	h.State, h.Limit, h.Used, h.Kept, h.Available = s.State, s.Limit, s.Used, s.Kept, max(0, s.Limit-s.Used)
}

func heldMemory(models *modelStore) ([]held, error) {
	segments, err := segment.List()
	if err != nil {
		return nil, err
	}
	out := make([]held, 0, len(segments))
	for _, s := range segments {
		if s.State == segment.Dead {
			continue // a runner removes it
		}
		h := held{Name: s.Name, PID: s.PID, ReadOnly: s.ReadOnly}
		h.see(s)
		if dir, weights := weightsOfRunner(s.PID); weights != "" {
			h.weights, h.names = weights, models.namesIn(dir)
			h.Model = h.names.nameOf(weights, "")
		}
		out = append(out, h)
	}
	return out, nil
}

// weightsOfRunner is the digest of the model that a runner has loaded and the directory of its
// models, by its command line; "" for other processes.
func weightsOfRunner(pid int) (dir, weights string) {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // that of no process is empty
	args := strings.Split(string(line), "\x00")
	at := slices.Index(args, "--model") + 1
	if at == 0 || at == len(args) {
		return "", ""
	}
	return filepath.Dir(filepath.Dir(args[at])), strings.TrimPrefix(filepath.Base(args[at]), "sha256-")
}

func printHeld(w io.Writer, all []held) {
	if len(all) == 0 {
		fmt.Fprintln(w, "No process holds KV memory that can be limited; an Ollama with OLLAMA_KVCACHED=1 does while a model is loaded.")
		return
	}
	printTable(w, []string{"name", "model", "pid", "used", "kept", "limit", "state"}, rowsOf(all, func(h held) []string {
		pid := "-"
		if h.PID != 0 {
			pid = strconv.Itoa(h.PID)
		}
		state := string(h.State)
		if h.ReadOnly {
			state += ", read only"
		}
		return []string{h.Name, cmp.Or(h.Model, "-"), pid, memoryText(max(0, h.Used)), memoryText(max(0, h.Kept)), memoryText(h.Limit), state}
	}))
}

// memoryText prints a size of memory in binary units.
func memoryText(n int64) string { return format.HumanBytes2(uint64(n)) }

// limit sets a limit, and returns the memory that is held then.
func limit(ctx context.Context, all []held, name, size string) (held, error) {
	bytes, err := sizing.ParseMemory(size)
	if err != nil {
		return held{}, cli.Usage(err)
	}
	target, err := oneHeld(all, name)
	if err != nil {
		return held{}, err
	}
	if err := segment.SetLimit(target.Name, bytes); err != nil {
		return held{}, err
	}
	return awaitObeyed(ctx, target, bytes)
}

// oneHeld finds a segment by its name, or by that of its model.
func oneHeld(all []held, name string) (held, error) {
	var of []string
	var found held
	for _, h := range all {
		switch {
		case h.Name == name:
			return h, nil
		case h.weights != "" && h.names.Has(h.weights, name):
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
			h.see(s)
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
			return h, fmt.Errorf("segment %s: the limit is %s, which its process or another program has put in place of %s", h.Name, memoryText(s.Limit), memoryText(limit))
		case s.InForce != limit:
			return h, fmt.Errorf("segment %s: the limit is set, and its process does not obey; it may be stopped, or busy loading", h.Name)
		}
		return h, nil
	}
}
