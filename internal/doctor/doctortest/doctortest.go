// Package doctortest is a machine for tests of package doctor, which has every fault that it is told to have.
package doctortest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/doctor"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/machine/machinetest"
	"github.com/kvtier/kvtier/internal/remote"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
)

// Machine is a machine in memory. Its fields may change until it is looked at.
type Machine struct {
	*machinetest.System
	Probes   map[string]error // by directory
	Statuses []install.Status
	States   map[string]telemetry.State
	StateErr error
	Health   remote.Health // of an engine
	Refuses  error         // of the engine

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

func (m *Machine) Probe(dir string, _ int) error {
	m.Wait(dir)
	m.mu.Lock()
	m.changed = append(m.changed, dir)
	m.mu.Unlock()
	return m.Probes[dir]
}

func (m *Machine) Installed(context.Context) ([]install.Status, error) { return m.Statuses, nil }

// Engine asks an engine, which needs the credentials of [Engine].
func (m *Machine) Engine(_ context.Context, c tierenv.Config, variables map[string]string) (remote.Health, error) {
	m.Wait(c.Remote)
	if variables == nil {
		variables = m.Set
	}
	if variables["AWS_SECRET_ACCESS_KEY"] != "secret" {
		return remote.Health{}, errors.New("there are no credentials")
	}
	return m.Health, m.Refuses
}

func (m *Machine) Telemetry(_ context.Context, root string) (telemetry.State, error) {
	if m.StateErr != nil {
		return telemetry.State{}, m.StateErr
	}
	s, ok := m.States[root]
	if !ok {
		return s, errors.New("nobody has reported to " + root)
	}
	return s, nil
}

// Places of a healthy machine.
const (
	Root       = "/var/lib/ollama-kv"
	Remote     = "/mnt/kv/pages"
	Executable = "/opt/kvtier/bin/ollama"
	PID        = "4211"
	OllamaUID  = 998
	KeyFile    = "/etc/kvtier/team.key"
)

// Engine are the variables of a service with an engine.
const Engine = "OLLAMA_KV_TIERING=1 OLLAMA_KV_TIER_LOCAL=" + Root + " OLLAMA_KV_TIER_REMOTE=s3://pages/team?endpoint=http://10.0.0.5:8333 " +
	"OLLAMA_KV_TIER_KEY_FILE=" + KeyFile + " AWS_ACCESS_KEY_ID=access AWS_SECRET_ACCESS_KEY=secret"

// Unit holds the properties of the service of a healthy machine.
func Unit() map[string]string {
	return map[string]string{
		"LoadState": "loaded", "MainPID": PID, "User": "ollama", "DynamicUser": "no", "NeedDaemonReload": "no",
		"ExecStart":   "{ path=" + Executable + " ; argv[]=" + Executable + " serve ; ignore_errors=no }",
		"Environment": "OLLAMA_KV_TIERING=1 OLLAMA_KV_TIER_LOCAL=" + Root + " OLLAMA_KV_TIER_LOCAL_GB=200 OLLAMA_KV_TIER_REMOTE=" + Remote + " OLLAMA_KV_TIER_REMOTE_GB=1000",
		"PrivateTmp":  "no", "ProtectSystem": "no", "ProtectHome": "no", "ReadWritePaths": "", "StateDirectory": "",
	}
}

// SetUnit gives the service properties. The running process gets the variables, too.
func (m *Machine) SetUnit(props map[string]string) {
	var out strings.Builder
	for name, value := range props {
		out.WriteString(name + "=" + value + "\n")
	}
	m.Outputs["systemctl show ollama.service"] = out.String()
	m.SetProcess(props["Environment"] + " HOME=/usr/share/ollama")
}

// SetProcess gives the service's process variables, separated by spaces.
func (m *Machine) SetProcess(variables string) {
	m.Write("/proc/"+PID+"/environ", strings.ReplaceAll(variables, " ", "\x00")+"\x00", OllamaUID)
}

// With returns the properties of a service with other variables.
func With(environment string) map[string]string {
	u := Unit()
	u["Environment"] = environment
	return u
}

// Disk is a large disk, half of it free.
func Disk() machine.Disk {
	return machine.Disk{Total: 4e12, Free: 2e12}
}

// mountinfo of a healthy machine.
const mountinfo = `22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 8:17 / /var/lib/ollama-kv rw,relatime - ext4 /dev/sdb1 rw
31 22 0:50 / /mnt/kv rw,nosuid - nfs4 nas:/kv rw,vers=4.2,soft,timeo=50,lookupcache=pos
`

// Mount replaces text in the machine's mounts.
func (m *Machine) Mount(old, new string) {
	m.Write("/proc/self/mountinfo", strings.ReplaceAll(mountinfo, old, new), 0)
}

// Healthy is a machine without any problem: a patched Ollama in a service, with both tiers, that
// root looks at.
func Healthy() *Machine {
	m := &Machine{
		System: machinetest.New(), Probes: map[string]error{},
		Statuses: []install.Status{{Executable: Executable, Ollama: "0.16.1", State: install.Unsupported, Tiering: "off", Service: "ollama.service"}},
		States:   map[string]telemetry.State{},
	}
	m.Me, m.Set["HOME"] = machine.Account{UID: 0, Name: "root", Home: "/root"}, "/root"
	for _, point := range []string{"/", Root, "/mnt/kv"} {
		m.Disks[point] = Disk()
	}
	m.Accounts = []machine.Account{
		{UID: 0, Name: "root", Home: "/root"}, {UID: OllamaUID, Name: "ollama", Home: "/usr/share/ollama"}, {UID: 1000, Name: "ann", Home: "/home/ann"},
	}
	m.Programs["systemctl"] = "/usr/bin/systemctl"
	m.Ours[Executable] = true
	m.Write("/proc/"+PID+"/cmdline", Executable+"\x00serve\x00", OllamaUID)
	m.Write("/proc/"+PID+"/status", "Name:\tollama\nPPid:\t1\nUid:\t998\t998\t998\t998\n", OllamaUID)
	m.Symlink("/proc/"+PID+"/exe", Executable)
	m.SetUnit(Unit())
	m.Mount("", "")
	m.Write("/etc/fstab", "nas:/kv /mnt/kv nfs4 soft 0 0\n", 0)
	m.Write(Executable, "", 0)
	m.Dir(Root, OllamaUID)
	m.Dir(Remote, OllamaUID)
	m.Write(KeyFile, "", OllamaUID).Mode = 0o600
	m.Health.RoundTrip = 3 * time.Millisecond
	booked, _ := json.Marshal(ledger.Ledger{Schema: 1, Bytes: 5e9, Counts: 1}) // never fails
	m.Write(Root+"/v1/usage.json", string(booked)+"\n00000000\n", OllamaUID)
	m.States[Root] = State()
	return m
}

// State is a state with a good hit rate.
func State() telemetry.State {
	totals := map[string]float64{
		telemetry.Series("ollama_kv_prompt_tokens_total", "source", telemetry.PlaceLocal):   900_000,
		telemetry.Series("ollama_kv_prompt_tokens_total", "source", telemetry.PlaceCompute): 100_000,
	}
	return telemetry.State{
		Version: 1, Root: Root, Live: true, Since: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
		Models:    []telemetry.ModelState{{Model: telemetry.Model{Weights: "aa11"}, Totals: totals}},
		Processes: []telemetry.ProcessState{{Process: telemetry.Process{PID: 4300}, Model: telemetry.Model{Weights: "aa11", Name: "qwen3"}, Gauges: map[string]float64{}}},
		Tiers:     []telemetry.Tier{{Name: tier.Local, Root: Root}},
	}
}
