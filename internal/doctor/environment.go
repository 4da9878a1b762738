package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
)

// Environment is the machine that is looked at.
type Environment interface {
	machine.System

	Now() time.Time

	// Probe makes an empty file in a directory and removes it.
	Probe(dir string) (Probe, error)

	// Installed lists the installations of Ollama, none without an error.
	Installed(ctx context.Context) ([]install.Status, error)

	// Telemetry returns the state that the collector of a directory of pages knows.
	Telemetry(ctx context.Context, root string) (telemetry.State, error)
}

// Probe is a file that was made and removed.
type Probe struct {
	Before, After time.Time // this machine's clock, around the file's creation
	Modified      time.Time // the clock of the filesystem, in between
}

// Here is the machine on which this program runs. state reads the counters of a directory.
func Here(state func(ctx context.Context, root string) (telemetry.State, error)) Environment {
	return here{state: state}
}

type here struct {
	machine.Here
	state func(ctx context.Context, root string) (telemetry.State, error)
}

func (here) Now() time.Time { return time.Now() }

func (here) Probe(dir string) (p Probe, err error) {
	name := filepath.Join(dir, ".kvtier-doctor-"+rand.Text())
	p.Before = time.Now()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(name)) }()
	info, err := f.Stat()
	if err != nil {
		return p, err
	}
	p.Modified, p.After = info.ModTime(), time.Now()
	return p, nil
}

func (here) Installed(ctx context.Context) ([]install.Status, error) {
	if runtime.GOOS == "windows" {
		return nil, nil
	}
	return install.Here().Status(ctx, install.Choice{}, os.Getenv("OLLAMA_HOST"))
}

func (h here) Telemetry(ctx context.Context, root string) (telemetry.State, error) {
	return h.state(ctx, root)
}
