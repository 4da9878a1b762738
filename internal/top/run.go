package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/kvtier/kvtier/internal/top/quiet"
	"github.com/kvtier/kvtier/telemetry"
)

func init() { quiet.Restore() }

// Run shows the servers on a terminal until its user quits or ctx ends. The terminal is then as
// before, also after a panic.
func Run(ctx context.Context, out io.Writer, opt Options) error {
	program := tea.NewProgram(newModel(ctx, opt), tea.WithContext(ctx), tea.WithOutput(out), tea.WithAltScreen(), tea.WithoutSignalHandler())
	if _, err := program.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("show the servers on the terminal: %w; kvtier top --once needs no terminal", err)
	}
	return nil
}

// Once prints one frame for each server.
func Once(ctx context.Context, out io.Writer, opt Options, width, height int) error {
	m := newModel(ctx, opt)
	m.still = true
	if opt.Names != nil {
		m.name = opt.Names()
	}
	if opt.Held != nil {
		m.held = opt.Held()
	}
	m.setRoots(opt.Roots())
	var failed error
	for i, s := range m.servers {
		s.take(read(ctx, opt, s.root))
		failed = errors.Join(failed, s.failure())
		m.shown = i
		if i > 0 {
			fmt.Fprintln(out)
		}
		if _, err := fmt.Fprintln(out, m.frame(width, height)); err != nil {
			return fmt.Errorf("print the state: %w", err)
		}
	}
	return failed
}

// JSON gives the state of each server to emit.
func JSON(ctx context.Context, opt Options, emit func(any) error) error {
	var failed error
	for _, root := range opt.Roots() {
		state, err := read(ctx, opt, root)
		if err != nil {
			failed = errors.Join(failed, (&server{root: root, err: err}).failure())
			continue
		}
		if err := emit(state); err != nil {
			return fmt.Errorf("print the state: %w", err)
		}
	}
	return failed
}

func read(ctx context.Context, opt Options, root string) (telemetry.State, error) {
	if opt.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, opt.Limit)
		defer cancel()
	}
	return opt.Read(ctx, root)
}

// failure is the error of a server that could not be read.
func (s *server) failure() error {
	if s.err == nil {
		return nil
	}
	if errors.Is(s.err, fs.ErrPermission) {
		return fmt.Errorf("read the state of %s: %w", s.root, s.err)
	}
	return fmt.Errorf("read the state of %s: %w; is a server with OLLAMA_KV_TIERING=1 running there? kvtier doctor says more", s.root, s.err)
}
