// Package doctortest is a machine for tests of package doctor, which has every fault that it is
// told to have.
package doctortest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/internal/doctor"
	"github.com/kvtier/kvtier/internal/machine/machinetest"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
)

// Machine is a machine in memory. Its fields may change until it is looked at.
type Machine struct {
	*machinetest.System
	Time     time.Time
	Probes   map[string]error // by directory
	Statuses []install.Status
	States   map[string]telemetry.State
	StateErr error

	mu      sync.Mutex
	changed []string
}

var _ doctor.Environment = (*Machine)(nil)

// Changed lists the directories in which a file was made.
func (m *Machine) Changed() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.changed)
}

func (m *Machine) Now() time.Time { return m.Time }

func (m *Machine) Probe(dir string) error {
	m.Wait(dir)
	m.mu.Lock()
	m.changed = append(m.changed, dir)
	m.mu.Unlock()
	return m.Probes[dir]
}

func (m *Machine) Installed(context.Context) ([]install.Status, error) { return m.Statuses, nil }

func (m *Machine) Telemetry(_ context.Context, root string) (telemetry.State, error) {
	if m.StateErr != nil {
		return telemetry.State{}, m.StateErr
	}
	s, ok := m.States[root]
	if !ok {
		return s, errors.New("no collector has run for " + root)
	}
	return s, nil
}
