package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/doctor"
	"github.com/kvtier/kvtier/internal/doctor/doctortest"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
)

var update = flag.Bool("update-golden", false, "write the golden files of doctor")

// runDoctor runs doctor on a machine.
func runDoctor(t *testing.T, m *doctortest.Machine, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return kvtierOn(t, host{machine: m}, append([]string{"doctor"}, args...)...)
}

// ill is a machine with findings of every severity, a hung mount among them.
func ill() *doctortest.Machine {
	m := doctortest.Healthy()
	m.Files[doctortest.Root].Mode = fs.ModeDir | 0o770
	m.Hung[doctortest.Remote] = true
	s := doctortest.State()
	s.Processes[0].Unstored = &telemetry.Unstored{Cause: telemetry.ObstacleModel}
	s.Processes[0].Busters = []telemetry.Buster{{Begin: 61, End: 65, Prompts: 12, Lost: 90_000}}
	s.Models[0].Totals[telemetry.Series("ollama_kv_missed_tokens_total", "cause", "evicted")] = 80_000
	m.States[doctortest.Root] = s
	return m
}

func TestDoctorGolden(t *testing.T) {
	for name, tc := range map[string]struct {
		machine *doctortest.Machine
		args    []string
		status  int
	}{
		"healthy": {doctortest.Healthy(), nil, 0},
		"ill":     {ill(), []string{"--timeout", "100ms"}, cli.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { close(tc.machine.Release) })
			status, stdout, stderr := runDoctor(t, tc.machine, tc.args...)
			require.Equal(t, tc.status, status)
			require.Empty(t, stderr)
			path := filepath.Join("testdata", "doctor", name+".txt")
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(stdout), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), stdout)
		})
	}
}

// TestDoctorStatuses: notes are no reason for a status, and errors count more than warnings.
func TestDoctorStatuses(t *testing.T) {
	warned := doctortest.Healthy()
	warned.SetUnit(doctortest.With(doctortest.Unit()["Environment"] + " OLLAMA_KV_TIER_LOCAL_BG=1"))
	status, out, stderr := runDoctor(t, warned, "--json")
	require.Equal(t, exitWarned, status)
	require.Empty(t, stderr, "the report has the number")
	var r doctor.Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, doctor.Warning, r.Worst)
	require.Equal(t, "unknown-variable", r.Findings[0].ID)
	require.Len(t, r.Checks, len(doctor.Checks()))

	noted := doctortest.Healthy()
	s := doctortest.State()
	s.Processes[0].Unstored = &telemetry.Unstored{Cause: telemetry.ObstacleModel}
	noted.States[doctortest.Root] = s
	status, _, stderr = runDoctor(t, noted)
	require.Zero(t, status)
	require.Empty(t, stderr)
}

// TestDoctorForMore: the remedy of what this user may not see is this command line, for the group where there is one.
func TestDoctorForMore(t *testing.T) {
	m := doctortest.Healthy()
	m.Files[doctortest.Root].Err = fs.ErrPermission
	own, err := user.LookupGroupId(strconv.Itoa(os.Getegid()))
	require.NoError(t, err)
	said := func(group string, args ...string) string {
		status, stdout, stderr := kvtierOn(t, host{machine: m, served: func(context.Context) (install.Served, bool) {
			return install.Served{Group: group, Reads: "sudo -u ann /usr/bin/kvtier"}, true
		}}, args...)
		require.Zero(t, status, stderr)
		return stdout
	}
	require.Contains(t, said(own.Name, "doctor"), "\n         $ sudo -u ann /usr/bin/kvtier doctor\n")
	require.Contains(t, said("no such group", "doctor", "--timeout", "5s"), "\n         $ "+machine.WithSudo("doctor", "--timeout", "5s")+"\n")
}

// TestDoctorPrintsNoEscapes: names of other people's files do not reach the terminal as they are.
func TestDoctorPrintsNoEscapes(t *testing.T) {
	m := doctortest.Healthy()
	evil := "/srv/" + hostileText
	m.Dir(evil, doctortest.OllamaUID).Mode = fs.ModeDir | 0o777
	for _, args := range [][]string{{"--root", evil}, {"--root", evil, "--json"}} {
		_, stdout, stderr := runDoctor(t, m, args...)
		requireHarmless(t, "doctor", stdout+stderr)
		require.Contains(t, stdout, "root-unsafe")
	}
}

// TestDoctorIsInterrupted: Ctrl-C ends the wait for a mount that hangs.
func TestDoctorIsInterrupted(t *testing.T) {
	m := doctortest.Healthy()
	m.Hung[doctortest.Remote] = true
	t.Cleanup(func() { close(m.Release) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	require.Equal(t, cli.Interrupted, runIn(ctx, host{stdout: &out, stderr: &out, machine: m, served: nowhere}, []string{"doctor", "--timeout", "1h"}))
	require.Equal(t, "interrupted\n", out.String())
}
