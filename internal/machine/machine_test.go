package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/machine/machinetest"
)

// TestService: a unit that runs Ollama behind env, with a file of variables, which win.
func TestService(t *testing.T) {
	s := machinetest.New()
	_, err := machine.FindService(t.Context(), s, "")
	require.ErrorIs(t, err, machine.ErrNoSystemd)

	s.Programs["systemctl"] = "/usr/bin/systemctl"
	s.Accounts = []machine.Account{{UID: 7, Name: "ai", Home: "/home/ai"}}
	s.Outputs["systemctl show ai.service"] = "LoadState=loaded\nActiveState=active\nMainPID=42\nUser=ai\n" +
		"ExecStart={ path=/usr/bin/env ; argv[]=/usr/bin/env A=1 /opt/bin/ollama serve ; }\n" +
		"Environment=OLLAMA_HOST=box \"B=x y\"\nEnvironmentFiles=/etc/ai (ignore_errors=yes)\nEnvironmentFiles=/etc/none (ignore_errors=yes)\n"
	s.Write("/etc/ai", "# comment\nOLLAMA_HOST='other'\n", 0)
	u, err := machine.FindService(t.Context(), s, "ai")
	require.NoError(t, err)
	require.True(t, u.Loaded() && u.Active)
	require.Equal(t, []any{"ai.service", "/opt/bin/ollama", 42}, []any{u.Name, u.Executable, u.PID})
	require.Equal(t, map[string]string{"OLLAMA_HOST": "other", "B": "x y"}, u.Variables)
	require.Equal(t, "/home/ai", machine.FindServer(t.Context(), s, "ai").Home())
	require.Nil(t, machine.FindServer(t.Context(), s, "none"))
}

// TestServers: a process is that of the unit, and others stand alone.
func TestServers(t *testing.T) {
	s := machinetest.New()
	for pid, line := range map[string]string{
		"42": "/opt/bin/ollama\x00serve\x00", "43": "llama-server\x00", "50": "ollama\x00serve\x00", "51": "ollama\x00run\x00", "52": "sh\x00-c\x00ollama serve\x00",
		"53": "ollama", "54": "\x00",
	} {
		s.Write("/proc/"+pid+"/cmdline", line, 0)
		s.Write("/proc/"+pid+"/status", "Name:\tollama\nUid:\t7\t7\t7\t7\n", 0)
	}
	s.Write("/proc/42/environ", "A=1\x00A=2\x00", 7)
	all := machine.Processes(s, "/proc")
	require.Len(t, all, 2)
	require.Equal(t, map[string]string{"A": "1"}, all[0].Variables, "the first counts, as for getenv")

	servers := machine.Servers(s, &machine.Server{Kind: machine.BySystemd, Name: "ai.service", PID: 42}, nil, all)
	require.Len(t, servers, 2)
	require.Equal(t, machine.BySystemd, servers[0].Kind)
	require.Equal(t, 7, servers[0].User.UID)
	require.Equal(t, machine.ByHand, servers[1].Kind)
	require.Nil(t, servers[1].Variables(), "they cannot be seen")

	s.Name = "darwin"
	require.Empty(t, machine.Processes(s, "/proc"))
}

// TestExecutables: a link is resolved, and the folder is the first one with a llama-server.
func TestExecutables(t *testing.T) {
	s := machinetest.New()
	s.Write("/opt/bin/ollama", "program", 0).Mode = 0o755
	s.Symlink("/usr/bin/ollama", "/opt/bin/ollama")
	s.Write("/opt/notes", "text", 0)
	require.Equal(t, "/opt/bin/ollama", machine.Executable(s, "/usr/bin/ollama"))
	require.Empty(t, machine.Executable(s, "/opt/notes"), "it cannot be run")
	require.Empty(t, machine.Executable(s, "/none"))

	require.Empty(t, machine.ServerFolder(s, "/opt/bin/ollama"))
	s.Write("/opt/bin/lib/ollama/llama-server-real", "program", 0)
	s.Write("/opt/lib/ollama/llama-server", "", 0) // made by systemd for a mount
	require.Equal(t, "/opt/bin/lib/ollama", machine.ServerFolder(s, "/opt/bin/ollama"))
	s.Write("/opt/lib/ollama/llama-server", "program", 0)
	require.Equal(t, "/opt/lib/ollama", machine.ServerFolder(s, "/opt/bin/ollama"))
}

// TestContainers: the volume with the longest path has a container's directory.
func TestContainers(t *testing.T) {
	s := machinetest.New()
	require.Empty(t, machine.Containers(t.Context(), s))
	s.Programs["docker"] = "/usr/bin/docker"
	s.Outputs["docker ps"] = "c0\nc1\n"
	s.Outputs["docker inspect c0 c1"] = `[{"Name":"/web","Path":"litellm","Args":["--model","ollama/qwen3"],"Config":{"Image":"nginx"}},{"Name":"/llm","Config":{"Image":"ollama/ollama","Env":["A=1"]},
		"Mounts":[{"Source":"/a","Destination":"/root"},{"Source":"/b","Destination":"/root/.ollama"}]}]`
	all := machine.Containers(t.Context(), s)
	require.Len(t, all, 1)
	require.Equal(t, []any{"llm", 0, "/b/kv-cache", ""}, []any{all[0].Name, all[0].User.UID, all[0].Host("/root/.ollama/kv-cache"), all[0].Host("/data")})
}
