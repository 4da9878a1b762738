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
	"github.com/kvtier/kvtier/telemetry/collect"
)

// Environment is the machine that is looked at.
type Environment interface {
	machine.System

	Now() time.Time

	// Probe makes an empty file in a directory and removes it.
	Probe(dir string) error

	// Installed lists the installations of Ollama, none without an error.
	Installed(ctx context.Context) ([]install.Status, error)

	// Telemetry returns the state that the reports to a directory of pages tell.
	Telemetry(ctx context.Context, root string) (telemetry.State, error)
}

// Here is the machine on which this program runs.
type Here struct{ machine.Here }

func (Here) Now() time.Time { return time.Now() }

func (Here) Probe(dir string) error {
	name := filepath.Join(dir, ".kvtier-doctor-"+rand.Text())
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(name))
}

func (Here) Installed(ctx context.Context) ([]install.Status, error) {
	if runtime.GOOS == "windows" {
		return nil, nil
	}
	return install.Here().Status(ctx, install.Choice{}, os.Getenv("OLLAMA_HOST"))
}

func (Here) Telemetry(ctx context.Context, root string) (telemetry.State, error) {
	return collect.Read(ctx, root)
}
