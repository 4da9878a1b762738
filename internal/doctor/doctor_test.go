package doctor_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier/sealed"
	"github.com/kvtier/kvtier/internal/doctor"
	"github.com/kvtier/kvtier/internal/doctor/doctortest"
	inventory "github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
)

type machine = doctortest.Machine

const (
	root   = doctortest.Root
	remote = doctortest.Remote
	proc   = "/proc/" + doctortest.PID
)

// variables of the healthy service.
var variables = doctortest.Unit()["Environment"]

// env changes the variables of the service and of its process.
func env(old, new string) func(*machine) {
	return func(m *machine) { m.SetUnit(doctortest.With(strings.Replace(variables, old, new, 1))) }
}

// more adds variables to the service and to its process.
func more(set string) func(*machine) {
	return func(m *machine) { m.SetUnit(doctortest.With(variables + " " + set)) }
}

// prop sets properties of the service.
func prop(pairs ...string) func(*machine) {
	return func(m *machine) {
		u := doctortest.Unit()
		for i := 0; i < len(pairs); i += 2 {
			u[pairs[i]] = pairs[i+1]
		}
		m.SetUnit(u)
	}
}

// at moves the local directory.
func at(dir string) func(*machine) {
	return func(m *machine) {
		m.Dir(dir, doctortest.OllamaUID)
		env(root, dir)(m)
	}
}

func state(change func(*telemetry.State)) func(*machine) {
	return func(m *machine) {
		s := doctortest.State()
		change(&s)
		m.States[root] = s
	}
}

// missed lets many tokens be computed for a cause.
func missed(cause telemetry.Cause) func(*machine) {
	return state(func(s *telemetry.State) {
		s.Models[0].Totals[telemetry.Series("ollama_kv_missed_tokens_total", "cause", string(cause))] = 80_000
	})
}

func mounted(old, new string) func(*machine) { return func(m *machine) { m.Mount(old, new) } }

func disk(point string, change func(*inventory.Disk)) func(*machine) {
	return func(m *machine) {
		d := doctortest.Disk()
		change(&d)
		m.Disks[point] = d
	}
}

func status(change func(*install.Status)) func(*machine) {
	return func(m *machine) {
		change(&m.Statuses[0])
		m.Ours = nil
	}
}

// container makes a container of Docker the only server.
func container(volume string) func(*machine) {
	return func(m *machine) {
		m.Outputs = map[string]string{
			"docker ps":      "c0ffee\n",
			"docker inspect": `[{"Name":"/llm","Path":"/bin/ollama","Args":["serve"],"State":{"Pid":77},"Config":{"Image":"kvtier-ollama","Env":["OLLAMA_KV_TIERING=1"]},"Mounts":[{"Source":"` + root + `","Destination":"` + volume + `"}]}]`,
		}
		m.Programs["docker"] = "/usr/bin/docker"
		delete(m.Files, proc+"/cmdline")
	}
}

// shared gives the service an engine.
func shared(fault func(*machine)) func(*machine) {
	return func(m *machine) {
		m.SetUnit(doctortest.With(doctortest.Engine))
		fault(m)
	}
}

// alone leaves no server on the machine.
func alone(m *machine) {
	m.Outputs = nil
	delete(m.Files, proc+"/cmdline")
}

// faults provoke each finding, in each of its forms.
var faults = map[string]map[string]func(*machine){
	"no-server": {"": func(m *machine) {
		alone(m)
		m.Set["OLLAMA_KV_TIER_LOCAL"] = root
	}},
	"tiering-off": {"": env("OLLAMA_KV_TIERING=1 ", "")},
	"bad-variable": {
		"a budget": env("LOCAL_GB=200", "LOCAL_GB=200GB"), "the switch": env("OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIERING=yes"),
		"shares": more("OLLAMA_KV_TIER_SPLIT=50,50"),
	},
	"unknown-variable": {"": more("OLLAMA_KV_TIER_LOCAL_BG=100")},
	"not-restarted": {"": func(m *machine) {
		more("OLLAMA_KV_TIER_COMPRESS=1")(m)
		m.SetProcess(variables + " HOME=/usr/share/ollama")
	}},
	"container-pages": {"": container("/data")},

	"not-installed": {
		"a stock release": status(func(s *install.Status) {
			s.State, s.Ollama, s.Cure = install.None, "0.34.2", "sudo /opt/kvtier ollama install --service ollama.service"
		}),
		"an old release": status(func(s *install.Status) { s.Ollama = "0.24.0" }),
	},
	"install-attention": {"": status(func(s *install.Status) { s.State, s.Hints = install.Replaced, []string{"Run install again."} })},
	"model-off": {"": status(func(s *install.Status) {
		s.State, s.Tiering, s.Log = install.Installed, "on", "/var/log/kvtier/llama-server.log"
		s.LastLog = `time=2026-11-25T11:00:00Z level=WARN msg="kv tier: off for this model" reason="--swa-full is set"`
	})},

	"no-answer": {"": func(m *machine) { m.Hung[remote] = true }},
	"cannot-look": {
		"a directory":                         func(m *machine) { m.Files[root].Err = fs.ErrPermission },
		"variables":                           func(m *machine) { m.Files[proc+"/environ"].Err = fs.ErrPermission },
		"an engine of another user's process": shared(func(m *machine) { m.Outputs = nil }),
		"another user's key": shared(func(m *machine) {
			m.Me, m.Refuses = m.Accounts[2], &fs.PathError{Op: "open", Path: doctortest.KeyFile, Err: fs.ErrPermission}
		}),
	},
	"root-missing":   {"": env(root, root+"/none")},
	"remote-missing": {"": env(remote, "/mnt/kv/none")},
	"mount-missing":  {"": mounted("/mnt/kv", "/mnt/other")},
	"root-unsafe": {
		"a link": func(m *machine) { m.Files[root].Mode = fs.ModeSymlink | 0o777 },
		"a file": func(m *machine) { m.Files[root].Mode = 0o600 },
		"owner":  func(m *machine) { m.Files[root].UID = 0 },
		"mode":   func(m *machine) { m.Files[root].Mode = fs.ModeDir | 0o770 },
	},
	"root-read-only": {
		"mount":   mounted("/var/lib/ollama-kv rw,", "/var/lib/ollama-kv ro,"),
		"service": prop("ProtectSystem", "strict", "ReadWritePaths", "/mnt/kv"),
		"home": func(m *machine) {
			at("/home/ann/pages")(m)
			prop("ProtectHome", "yes", "Environment", strings.Replace(variables, root, "/home/ann/pages", 1))(m)
		},
	},
	"root-emptied": {
		"memory": disk(root, func(d *inventory.Disk) { d.RAM = true }),
		"rules":  at("/tmp/pages"),
		"service": func(m *machine) {
			at("/tmp/pages")(m)
			prop("PrivateTmp", "yes", "Environment", strings.Replace(variables, root, "/tmp/pages", 1))(m)
		},
	},

	"engine-off": {
		"it refuses": shared(func(m *machine) { m.Refuses = errors.New("the bucket does not exist") }),
		"no credentials": shared(func(m *machine) {
			m.SetUnit(doctortest.With(strings.Replace(doctortest.Engine, "=secret", "=wrong", 1)))
		}),
		"root's key": shared(func(m *machine) { m.Files[doctortest.KeyFile].UID = 0 }),
	},
	"engine-key":         {"": shared(func(m *machine) { m.Refuses = fmt.Errorf("count: %w", sealed.ErrOtherKey) })},
	"engine-uncollected": {"": shared(func(m *machine) { m.Health.Unconditional = true })},

	"disk-full":        {"": disk(root, func(d *inventory.Disk) { d.Free = 1e6 })},
	"budget-over-disk": {"": disk(root, func(d *inventory.Disk) { d.Total, d.Free = 150e9, 100e9 })},
	"quarantine": {"": func(m *machine) {
		m.Dir(root+"/v1/quarantine", doctortest.OllamaUID)
		m.Write(root+"/v1/quarantine/0a.check.1.kvp", "", doctortest.OllamaUID)
	}},

	"model-unsupported": {"": state(func(s *telemetry.State) {
		s.Processes[0].Unstored = &telemetry.Unstored{Cause: telemetry.ObstacleModel}
	})},
	"not-stored": {"": state(func(s *telemetry.State) {
		s.Processes[0].Unstored = &telemetry.Unstored{Cause: telemetry.ObstacleSlotFile, Detail: "8 bytes follow the last cache"}
	})},
	"breaker-open": {"": state(func(s *telemetry.State) {
		s.Tiers = append(s.Tiers, telemetry.Tier{Name: "remote", Root: remote, Down: true})
	})},
	"dropped-pages": {"": state(func(s *telemetry.State) { s.Models[0].Totals["ollama_kv_dropped_pages_total"] = 4 })},
	"prompts-change": {"": state(func(s *telemetry.State) {
		s.Processes[0].Busters = []telemetry.Buster{{Begin: 61, End: 65, Prompts: 12, Lost: 90_000, Words: &telemetry.Words{Was: []int32{4242}, Is: []int32{4343}}}}
	})},
	"misses": {
		"evicted": missed(telemetry.CauseEvicted), "damaged": missed(telemetry.CauseDamaged), "a tier": missed(telemetry.CauseTierDown),
		"a type": missed(telemetry.CauseType),
	},
}

// look looks at a healthy machine with a fault.
func look(t *testing.T, fault func(*machine), opt doctor.Options) (doctor.Report, *machine) {
	t.Helper()
	m := doctortest.Healthy()
	if fault != nil {
		fault(m)
	}
	t.Cleanup(func() { close(m.Release) })
	if len(m.Hung) > 0 {
		opt.Limit = 50 * time.Millisecond
	} else {
		opt.Limit = time.Minute
	}
	return doctor.Look(t.Context(), m, opt), m
}

func ids(r doctor.Report) (all []string) {
	for _, f := range r.Findings {
		all = append(all, f.ID)
	}
	return all
}

// finding is the one of a check.
func finding(t *testing.T, r doctor.Report, id string) doctor.Finding {
	t.Helper()
	at := slices.Index(ids(r), id)
	require.GreaterOrEqual(t, at, 0, "found %v", ids(r))
	return r.Findings[at]
}

func TestHealthy(t *testing.T) {
	r, m := look(t, nil, doctor.Options{})
	require.Empty(t, r.Findings)
	require.Equal(t, doctor.OK, r.Worst)
	require.Len(t, r.Checks, len(doctor.Checks()))
	require.ElementsMatch(t, []string{root, remote}, m.Changed(), "a file in each directory, and nowhere else")
}

// TestEveryFindingIsProvoked: each fault brings its finding with all that a person needs, and
// there is a fault for each finding.
func TestEveryFindingIsProvoked(t *testing.T) {
	var all []string
	for _, c := range doctor.Checks() {
		all = append(all, c.ID)
		require.NotEmpty(t, faults[c.ID], "no test provokes %s", c.ID)
		for form, fault := range faults[c.ID] {
			t.Run(c.ID+"/"+form, func(t *testing.T) { provoke(t, c, fault) })
		}
	}
	require.ElementsMatch(t, all, slices.Collect(maps.Keys(faults)))
}

func provoke(t *testing.T, c doctor.Check, fault func(*machine)) {
	r, _ := look(t, fault, doctor.Options{})
	f := finding(t, r, c.ID)
	require.Equal(t, c.Severity, f.Severity)
	require.Equal(t, []string{c.Matters, c.Means}, []string{f.Matters, f.Means})
	require.Regexp(t, `^[A-Z/a-z0-9].*\.$`, f.Says)
	require.NotEmpty(t, f.Remedy)
	require.NotRegexp(t, `\{[a-z]+\}`, f.Remedy, "a name has no value")
	if c.ID != "no-server" {
		require.NotEmpty(t, f.Evidence)
	}
	require.GreaterOrEqual(t, slices.Index([]doctor.Severity{doctor.OK, doctor.Note, doctor.Warning, doctor.Error}, r.Worst), 1)
	t.Log(ids(r))
	for _, e := range f.Evidence {
		t.Log(e.Of, ": ", e.Value)
	}
	t.Log(f.Says, "\n$", f.Remedy)
}

// TestEngine: a good engine is no finding, and no report has a secret.
func TestEngine(t *testing.T) {
	r, _ := look(t, shared(func(*machine) {}), doctor.Options{})
	require.Empty(t, r.Findings)
	require.Contains(t, r.Looked, "remote tier s3://pages/team, answers in 3ms")
	for name, fault := range map[string]func(*machine){
		"answers": func(*machine) {}, "refuses": func(m *machine) { m.Refuses = errors.New("no") }, "hangs": func(m *machine) { m.Hung["s3://pages/team"] = true },
	} {
		r, _ := look(t, shared(fault), doctor.Options{})
		text, err := json.Marshal(r)
		require.NoError(t, err)
		require.NotContains(t, string(text), "secret", name)
		require.Equal(t, name == "hangs", slices.Contains(ids(r), "no-answer"), name)
	}
	r, _ = look(t, func(m *machine) {
		alone(m)
		m.Set["OLLAMA_KV_TIER_KEY_FILE"], m.Set["AWS_SECRET_ACCESS_KEY"] = doctortest.KeyFile, "secret"
	}, doctor.Options{Root: root, Remote: "s3://pages/team"})
	require.Equal(t, []string{"no-server"}, ids(r), "root reads the key of any user")

	r, m := look(t, func(m *machine) {
		container("/root/.ollama/kv-cache")(m)
		m.Outputs["docker inspect"] = strings.Replace(m.Outputs["docker inspect"], "TIERING=1", `TIERING=1","OLLAMA_KV_TIER_REMOTE=valkey://:secret@valkey:6379`, 1)
	}, doctor.Options{})
	require.Equal(t, "docker exec llm kvtier doctor", finding(t, r, "cannot-look").Remedy)
	require.Equal(t, []string{root}, m.Changed())
}

// TestCausesOfSilence: a reported cause for which nothing is stored is a finding with its next step, unless nothing
// can be done.
func TestCausesOfSilence(t *testing.T) {
	for _, e := range telemetry.Obstacles {
		r, _ := look(t, state(func(s *telemetry.State) {
			s.Processes[0].Unstored = &telemetry.Unstored{Cause: e.Cause, Detail: "the reason"}
		}), doctor.Options{})
		switch e.Cause {
		case telemetry.ObstacleEmbedding:
			require.Empty(t, r.Findings)
			continue
		case telemetry.ObstacleModel:
			require.Equal(t, []string{"model-unsupported"}, ids(r))
			require.Equal(t, doctor.Note, r.Worst)
			continue
		}
		require.Equal(t, []string{"not-stored"}, ids(r), e.Cause)
		require.Contains(t, r.Findings[0].Says, e.Means)
		require.Contains(t, r.Findings[0].Evidence, doctor.Evidence{Of: "next step", Value: e.Remedy})
	}
}

// TestLogsOfServers: the remedy reads the log that the server has.
func TestLogsOfServers(t *testing.T) {
	dropped := state(func(s *telemetry.State) { s.Models[0].Totals["ollama_kv_dropped_pages_total"] = 4 })
	remedy := func(fault func(*machine)) string {
		r, _ := look(t, func(m *machine) { fault(m); dropped(m) }, doctor.Options{})
		return finding(t, r, "dropped-pages").Remedy
	}
	require.Contains(t, remedy(func(*machine) {}), "journalctl -u ollama.service | grep")
	require.Contains(t, remedy(container("/root/.ollama/kv-cache")), "docker logs llm 2>&1 | grep")
	require.Contains(t, remedy(func(m *machine) { m.Outputs = nil }), "cat LOG | grep")
}

// TestForeignRoot: no command gives the pages of an unknown server to another user.
func TestForeignRoot(t *testing.T) {
	r, _ := look(t, func(m *machine) {
		alone(m)
		m.Me = m.Accounts[2]
	}, doctor.Options{Root: root})
	require.Equal(t, "sudo -u ollama kvtier doctor --root "+root, finding(t, r, "root-unsafe").Remedy)
}

// TestCures: an installation's remedy is the command that its status names.
func TestCures(t *testing.T) {
	cure := func(cure string) string {
		r, _ := look(t, status(func(s *install.Status) { s.State, s.Cure = install.Replaced, cure }), doctor.Options{})
		return finding(t, r, "install-attention").Remedy
	}
	require.Equal(t, "sudo /opt/kvtier ollama install --prefix '/a b'", cure("sudo /opt/kvtier ollama install --prefix '/a b'"))
	require.Regexp(t, `^sudo /\S+ ollama status$`, cure(""))
}

// variable matches a row of a table of variables.
var variable = regexp.MustCompile("(?m)^\\| `(OLLAMA_(?:KV|PAGED)_[A-Z_]+)")

// TestDocumentedVariablesAreKnown: no variable that has an effect is said to have none.
func TestDocumentedVariablesAreKnown(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "configuration.md"))
	require.NoError(t, err)
	documented := variable.FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(documented), 20)
	var empty []string
	for _, found := range documented {
		if name := found[1] + "="; !strings.Contains(variables, name) {
			empty = append(empty, name)
		}
	}
	r, _ := look(t, more(strings.Join(empty, " ")), doctor.Options{})
	require.Empty(t, r.Findings)
}

// TestFewDrops: some pages that could not be stored among many are no finding.
func TestFewDrops(t *testing.T) {
	r, _ := look(t, state(func(s *telemetry.State) {
		s.Models[0].Totals["ollama_kv_dropped_pages_total"] = 4
		s.Models[0].Totals[telemetry.Series("ollama_kv_sealed_pages_total", "kind", "page")] = 100_000
	}), doctor.Options{})
	require.Empty(t, r.Findings)
}

// TestHungMount: one finding, and the rest of the work is done.
func TestHungMount(t *testing.T) {
	r, m := look(t, func(m *machine) {
		m.Hung[remote] = true
		m.Files[root].Mode = fs.ModeDir | 0o777
	}, doctor.Options{})
	require.Equal(t, []string{"no-answer", "root-unsafe"}, ids(r))
	require.Contains(t, r.Findings[0].Remedy, "findmnt --target "+remote)
	require.Equal(t, []string{root}, m.Changed())

	r, _ = look(t, func(m *machine) {
		m.Hung["systemctl"], m.Hung["/proc"] = true, true
		m.Set["OLLAMA_KV_TIER_LOCAL"] = root
	}, doctor.Options{})
	require.Contains(t, ids(r), "no-answer")
	require.Contains(t, ids(r), "no-server")
}

// TestNamedRoot: with a root that was named, the servers' directories do not count.
func TestNamedRoot(t *testing.T) {
	r, m := look(t, func(m *machine) { m.Dir("/other", 1000).Mode = fs.ModeDir | 0o777 }, doctor.Options{Root: "/other"})
	require.Equal(t, []string{"root-unsafe"}, ids(r))
	require.Equal(t, []string{"/other"}, m.Changed())
	r, _ = look(t, func(m *machine) { m.Files[root].UID = 0 }, doctor.Options{Root: root})
	require.Contains(t, ids(r), "root-unsafe", "the server of that root is known")
}

// TestContainer: the pages of a container are looked at where its volume is.
func TestContainer(t *testing.T) {
	r, m := look(t, container("/root/.ollama/kv-cache"), doctor.Options{})
	require.NotContains(t, ids(r), "container-pages")
	require.Equal(t, []string{root}, m.Changed())
}

// TestSummary: a report says also what was not found.
func TestSummary(t *testing.T) {
	for want, found := range map[string][]doctor.Severity{
		"no problems found":               nil,
		"1 error, 2 notes found":          {doctor.Error, doctor.Note, doctor.Note},
		"2 warnings, and no error":        {doctor.Warning, doctor.Warning},
		"1 note, no warning and no error": {doctor.Note},
	} {
		var r doctor.Report
		for _, s := range found {
			r.Findings = append(r.Findings, doctor.Finding{Severity: s})
		}
		var out strings.Builder
		r.Print(&out)
		require.Contains(t, "\n"+out.String(), "\n"+want+"\n")
	}
}

// TestHostileTexts: names and manifests of other people control no terminal, and no shell.
func TestHostileTexts(t *testing.T) {
	const evil = "/tmp/a'; rm -rf $(x)\n\x1b]0;x\a"
	r, _ := look(t, func(m *machine) {
		m.Dir(evil, doctortest.OllamaUID).Mode = fs.ModeDir | 0o777
	}, doctor.Options{Root: evil})
	require.Equal(t, "sudo chmod 700 '/tmp/a'\\''; rm -rf $(x)\n\x1b]0;x\a'", finding(t, r, "root-unsafe").Remedy)
	var out strings.Builder
	r.Print(&out)
	for _, line := range strings.Split(out.String(), "\n") {
		require.NotRegexp(t, `^(rm|\x1b)`, line)
	}
	_, err := json.Marshal(r)
	require.NoError(t, err)
}

// TestHostileFiles: nothing below a root is trusted.
func TestHostileFiles(t *testing.T) {
	r, _ := look(t, func(m *machine) {
		for i, text := range []string{"", "{", `{"identity":{}}`, `{"schema":-1,"identity":null}`, `[]`, "\x00\xff"} {
			key := strings.Repeat("0123456789abcdef"[i:i+1], 64)
			m.Dir(root+"/v1/"+key, doctortest.OllamaUID)
			m.Write(root+"/v1/"+key+"/manifest.json", text, doctortest.OllamaUID)
		}
		m.Write(root+"/v1/usage.json", `{"bytes":-9223372036854775808,"written":{"2026-11-25":1e30}}`, doctortest.OllamaUID)
		m.Write("/proc/1/cmdline", "\x00", 0)
		m.Write("/proc/2/cmdline", "ollama\x00serve", 0)
		m.Write("/proc/2/status", "Uid:\nPPid:\n", 0)
		m.Write("/proc/self/mountinfo", "- - -\n\n1 2 3 - \n", 0)
	}, doctor.Options{})
	require.NotEmpty(t, r.Looked)
}

// TestNoWordsOfPrompts: tokens of a prompt are in no output.
func TestNoWordsOfPrompts(t *testing.T) {
	r, _ := look(t, faults["prompts-change"][""], doctor.Options{})
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(text), "Tokens 61 to 64 change")
	require.NotContains(t, string(text), "4242")
	require.NotContains(t, string(text), "4343")
}

// TestOtherSystems: where there is neither /proc nor systemd, directories are looked at.
func TestOtherSystems(t *testing.T) {
	for _, system := range []string{"darwin", "windows"} {
		r, m := look(t, func(m *machine) {
			m.Name, m.Programs = system, nil
			m.Set["OLLAMA_KV_TIER_LOCAL"] = root
		}, doctor.Options{})
		require.Contains(t, ids(r), "no-server")
		require.Equal(t, []string{root}, m.Changed())
	}
}

// TestFailures: an error of the environment is no panic and no finding of another check.
func TestFailures(t *testing.T) {
	r, _ := look(t, func(m *machine) {
		m.StateErr = errors.New("refused")
		m.Disks = nil
		m.Ours, m.Statuses = nil, nil
		m.Probes[root] = errors.New("I/O error")
	}, doctor.Options{})
	require.Empty(t, r.Findings, "before a stock Ollama nothing collects while no model is loaded")
	r, _ = look(t, func(m *machine) { m.StateErr = errors.New("refused") }, doctor.Options{})
	require.Empty(t, r.Findings, "kvtier ps says that nothing has reported")

	r, _ = look(t, func(m *machine) { m.Probes[remote] = &fs.PathError{Op: "open", Path: remote, Err: syscall.EROFS} }, doctor.Options{})
	require.Equal(t, []string{"root-read-only"}, ids(r), "an export that is read-only")
}

// TestNoSecrets: a report is shown to people who help, so it has no keys and no passwords.
func TestNoSecrets(t *testing.T) {
	r, _ := look(t, func(m *machine) {
		more("OLLAMA_API_KEY=hunter1 OLLAMA_KV_TIER_TOKEN=hunter2 OLLAMA_PROXY=http://me:hunter3@proxy:8080 OLLAMA_KV_TIER_COMPRESS=1")(m)
		m.SetProcess(variables + " OLLAMA_API_KEY=hunter4 HTTPS_PROXY=http://me:hunter5@proxy HOME=/usr/share/ollama")
	}, doctor.Options{})
	require.Contains(t, ids(r), "not-restarted")
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.NotContains(t, string(text), "hunter")
	require.Contains(t, string(text), "OLLAMA_API_KEY")
	require.Contains(t, string(text), "http://…@proxy:8080")
	require.Contains(t, string(text), "configured 1")
}

// TestProgramOfAnotherUser: anybody may start a program named ollama with any variables. Nothing
// is written where they point to, and no command obeys them with root's rights.
func TestProgramOfAnotherUser(t *testing.T) {
	pose := func(set ...string) func(*machine) {
		return func(m *machine) {
			alone(m)
			m.Write("/proc/77/cmdline", "ollama\x00serve\x00", 1000)
			m.Write("/proc/77/status", "PPid:\t1\nUid:\t1000\t1000\t1000\t1000\n", 1000)
			m.Write("/proc/77/environ", strings.Join(set, "\x00")+"\x00", 1000)
			m.Symlink("/proc/77/exe", "/home/ann/evil")
			m.Dir("/etc/cron.d", 0)
			m.Dir("/home/ann/pages", 1000)
		}
	}
	commands := func(r doctor.Report) string {
		var all strings.Builder
		for _, f := range r.Findings {
			all.WriteString(f.ID + ": " + f.Remedy + "\n")
		}
		return all.String()
	}
	r, m := look(t, pose("OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL=/etc/cron.d", "OLLAMA_KV_TIER_REMOTE=/etc/none"), doctor.Options{})
	require.Empty(t, m.Changed())
	require.Subset(t, ids(r), []string{"root-unsafe", "remote-missing"})
	require.NotRegexp(t, `sudo (chown|chmod|install -d -m 700 -o ann /etc)|(: |&& |; )/home/ann/evil`, commands(r))
	require.Contains(t, commands(r), "root-unsafe: sudo -u ann mkdir -p -m 700 /home/ann/kv-pages && sudo -u ann env OLLAMA_KV_TIER_LOCAL=/home/ann/kv-pages /home/ann/evil serve")
	require.Contains(t, commands(r), "remote-missing: sudo -u ann install -d -m 700 -o ann /etc/none")

	_, m = look(t, pose("OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL=/home/ann/pages"), doctor.Options{})
	require.Equal(t, []string{"/home/ann/pages"}, m.Changed(), "a server of theirs is measured")
	_, m = look(t, func(m *machine) {
		pose("OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL=/etc/cron.d")(m)
		m.Me = inventory.Account{UID: 1000, Name: "ann", Home: "/home/ann"}
	}, doctor.Options{})
	require.Equal(t, []string{"/etc/cron.d"}, m.Changed(), "the system says what a user may write")
}

var update = flag.Bool("update-docs", false, "write the table of docs/doctor.md")

// Marks around the table.
const (
	tableBegin = "<!-- The table is that of internal/doctor: go test ./internal/doctor -update-docs -->\n"
	tableEnd   = "<!-- End of the table -->\n"
)

// TestDocumentation: the document has every check, as the program explains it.
func TestDocumentation(t *testing.T) {
	const path = "../../docs/doctor.md"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), tableBegin)
	require.True(t, found)
	table, after, found := strings.Cut(rest, tableEnd)
	require.True(t, found)
	want := "\n| check | meaning |\n|---|---|\n"
	for _, c := range doctor.Checks() {
		want += fmt.Sprintf("| `%s`, %s | %s. %s |\n", c.ID, c.Severity, c.Title, strings.ReplaceAll(c.Matters, "|", `\|`))
	}
	want += "\n"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+tableBegin+want+tableEnd+after), 0o644))
		return
	}
	require.Equal(t, want, table)
}
