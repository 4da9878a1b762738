package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func command(line string, env ...string) Command {
	return Command{Args: strings.Fields(line), Environ: env}
}

// ollama is the command line with which Ollama v0.32.15 starts a model.
const ollama = "--model /m/blobs/sha256-1 --port 41234 --host 127.0.0.1 --no-webui --offline -c 8192 -np 2 " +
	"--log-verbosity 4 --no-log-prefix --no-log-timestamps --flash-attn auto -b 512 -ub 512 --context-shift"

func TestServes(t *testing.T) {
	for _, c := range []Command{
		command(ollama), command("-m x"), command("-hf a/b:Q4"), command("-c 5", "LLAMA_ARG_MODEL=x"),
		command("--model_url u"), command("-m x", "LLAMA_ARG_EMBEDDINGS=0"),
	} {
		require.True(t, c.Serves(), "%q", c.Args)
	}
	for _, c := range []Command{
		command(""), command("--list-devices"), command("--version -m x"), command(ollama + " --embedding"),
		command("-m x --rerank"), command("-m x", "LLAMA_ARG_EMBEDDINGS=1"), command("--models-dir d"),
	} {
		require.False(t, c.Serves(), "%q", c.Args)
	}
}

// TestRoutes: a llama-server without a model is a router, unless it prints something and ends.
func TestRoutes(t *testing.T) {
	home := "HOME=" + t.TempDir()
	for _, line := range []string{"", "--models-dir d --port 5", "-c 8192"} {
		require.True(t, command(line, home).Routes(), line)
	}
	for _, line := range []string{"-m x", "-hf a/b", "-dr a", "-mu u", "--version", "--list-devices", "--gpt-oss-20b-default", "--fim-qwen-7b-spec"} {
		require.False(t, command(line, home).Routes(), line)
	}
	require.False(t, command("", home, "LLAMA_ARG_MODEL=x").Routes())

	// As Ollama v0.34.2 looks for devices.
	require.True(t, command("--port 5 --host 127.0.0.1 --no-webui --offline --verbose", home).Looks())
	for _, line := range []string{"", "--offline", "--no-webui", "--offline --ui", ollama} {
		require.False(t, command(line, home).Looks(), line)
	}
}

func TestTheLastFlagCountsAndThenTheVariable(t *testing.T) {
	c := command("--port 1 --port 2 --host h", "LLAMA_ARG_PORT=3", "LLAMA_ARG_HOST=v", "LLAMA_ARG_MODEL=/m")
	name, number, err := c.Address("none")
	require.NoError(t, err)
	require.Equal(t, "h", name)
	require.Equal(t, 2, number)
	require.Equal(t, "/m", c.Model())

	name, number, err = command("", "LLAMA_ARG_PORT=3").Address("none")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", name)
	require.Equal(t, 3, number)

	_, _, err = command("--port x").Address("none")
	require.Error(t, err)
	_, number, err = command("--model m --port").Address("none")
	require.NoError(t, err)
	require.Equal(t, 8080, number, "llama-server itself refuses a flag without a value")
}

func TestReasons(t *testing.T) {
	require.Empty(t, command(ollama).Hidden())
	require.Empty(t, command(ollama).Unstorable())
	require.Empty(t, command("-m x --cache-reuse 0 -a the-default").Unstorable())
	for _, line := range []string{"--ssl-cert-file c", "--api-prefix /x", "--host /run/x.sock", "--host 127.0.0.1,::1"} {
		require.NotEmpty(t, command(line).Hidden(), line)
	}
	require.NotEmpty(t, command("-m x", "AIP_MODE=PREDICTION").Hidden(), "Vertex AI asks another port")
	for _, line := range []string{"--slot-save-path d", "--cache-reuse 256", "--swa-full"} {
		require.NotEmpty(t, command(line).Unstorable(), line)
	}
	require.NotEmpty(t, command("-m x", "LLAMA_ARG_CACHE_REUSE=1").Unstorable())
	require.Empty(t, command("-m x --cache-prompt --sleep-idle-seconds -1", "LLAMA_ARG_CACHE_PROMPT=0").Unstorable())
	require.Empty(t, command("-m x", "LLAMA_ARG_CACHE_PROMPT=on", "LLAMA_ARG_SLEEP_IDLE_SECONDS=-1").Unstorable())
	for _, variable := range []string{"LLAMA_ARG_CACHE_PROMPT=0", "LLAMA_ARG_NO_CACHE_PROMPT=1", "LLAMA_ARG_SLOT_SAVE_PATH=/keep", "LLAMA_ARG_SLEEP_IDLE_SECONDS=60"} {
		require.NotEmpty(t, command("-m x", variable).Unstorable(), variable)
	}
	for _, line := range []string{
		"-hf a/b", "-m x -hf a/b", "-m x-00001-of-00003.gguf",
		"-m x --lora-scaled a:0.5", "-m x --control-vector f", "-m x --fim-qwen-1.5b-default", "-m x -mu u",
		"-m x -dr a", "-m x --docker_repo a", "-m x --gpt-oss-20b-default", "-m x --vision-gemma-4b-default",
		"-m x --no-cache-prompt", "-m x --spec-synth-len 2", "-m x --no_cache_prompt", "-m x --sleep-idle-seconds 60",
	} {
		require.NotEmpty(t, command(line).Unstorable(), line)
	}
	require.NotEmpty(t, command("-m x", "LLAMA_ARG_DOCKER_REPO=a").Unstorable())
}

// TestDrafts: their type counts among what may change rows, and nothing else of them does.
// TestSharedDrafts: those from the texts of all requests, or of those before in a slot.
func TestSharedDrafts(t *testing.T) {
	for _, line := range []string{"", "--spec-type none", "--spec-type draft-mtp,ngram-simple", "-md d"} {
		require.Empty(t, command("-m x "+line).SharesDrafts(), line)
	}
	for _, line := range []string{"--spec_default", "--spec-type ngram-mod", "--spec-type none,ngram-cache --spec-type draft-mtp"} {
		require.NotEmpty(t, command("-m x "+line).SharesDrafts(), line)
	}
	require.NotEmpty(t, command("-m x", "LLAMA_ARG_SPEC_TYPE=ngram-mod").SharesDrafts())
}

// TestSimilarity: llama-server's own one holds where the flag has no number.
func TestSimilarity(t *testing.T) {
	for line, want := range map[string]float64{"-m x": 0.1, "-sps 0": 0, "--slot_prompt_similarity 0.5": 0.5, "-sps 1 -sps 0.25": 0.25, "-sps": 0.1} {
		require.InDelta(t, want, command(line).Similarity(), 1e-9, line)
	}
}

// TestChats: whatever may answer a prompt.
func TestChats(t *testing.T) {
	home := "HOME=" + t.TempDir()
	for _, line := range []string{ollama, "-dr a", "--gpt-oss-20b-default", "--models-dir d"} {
		require.True(t, command(line, home).Chats(), line)
	}
	for _, line := range []string{"--version", "-m x --embedding", "-m x --rerank", "--port 5 --no-webui --offline"} {
		require.False(t, command(line, home).Chats(), line)
	}
}

func TestDrafts(t *testing.T) {
	for _, line := range []string{"", "--spec-type none", "--spec_type none"} {
		c := command("-m x "+line, "LLAMA_ARG_SPEC_TYPE=none")
		require.False(t, c.Drafts(), line)
		require.Empty(t, c.Unstorable(), line)
		require.Empty(t, c.Numerics(), line)
	}
	require.True(t, command("-m x", "LLAMA_ARG_SPEC_TYPE=draft-mtp").Drafts())
	require.True(t, command("-m x", "LLAMA_ARG_SPEC_DRAFT_MODEL=d").Drafts())
	for line, rows := range map[string]string{
		"--spec-type draft-mtp --spec-draft-n-max 4 --spec-draft-backend-sampling": "--spec-type draft-mtp",
		"--spec-type none,ngram-mod":             "--spec-type none,ngram-mod",
		"--spec-type none --spec-type ngram-mod": "--spec-type ngram-mod",
		"--spec-type ngram-mod --spec-type none": "--spec-type ngram-mod",
		"--spec-type none -md d":                 "drafts",
		"--spec-type":                            "--spec-type",
		"--spec_default":                         "--spec_default",
		"-hfd a/b":                               "drafts",
	} {
		c := command("-m x " + line)
		require.True(t, c.Drafts(), line)
		require.Empty(t, c.Unstorable(), line)
		require.Equal(t, rows, strings.Join(c.Numerics(), " "), line)
	}
}

// TestNumerics: everything counts that is not known to change no row.
func TestNumerics(t *testing.T) {
	c := command(ollama + " --rope-freq-base 500 --cache-type-k q8_0")
	require.Equal(t, strings.Fields("--flash-attn auto --rope-freq-base 500 --cache-type-k q8_0"), c.Numerics())
	c = command("-m x")
	c.Environ = []string{"HOME=/x", "LLAMA_ARG_ROPE_FREQ_BASE=500", "LLAMA_ARG_PORT=5", "GGML_CUDA_X=1", "LLAMA_ATTN_ROT_DISABLE=1"}
	require.Equal(t, []string{"GGML_CUDA_X=1", "LLAMA_ARG_ROPE_FREQ_BASE=500", "LLAMA_ATTN_ROT_DISABLE=1"}, c.Numerics())
}

// TestHowImagesAreComputed: all options that decide it count, as flags and as variables.
func TestHowImagesAreComputed(t *testing.T) {
	path, usual := command("-m x --mmproj p").Projector()
	require.Equal(t, "p", path)
	seen := []string{usual}
	for _, c := range []Command{
		command("--mmproj p --no-mmproj-offload"), command("--mmproj p -mmdev CUDA1"), command("--mmproj p -b 128"), command("--mmproj p -ub 128"),
		command("--mmproj p", "MTMD_BACKEND_DEVICE=CUDA2"), command("--mmproj p", "LLAMA_ARG_BATCH=64"), command("--mmproj p", "LLAMA_ARG_UBATCH=64"),
	} {
		_, how := c.Projector()
		require.NotContains(t, seen, how)
		seen = append(seen, how)
		require.Empty(t, c.Unknown())
	}
}

func TestBehind(t *testing.T) {
	c := command(ollama + " --cache-ram 8192")
	require.Equal(t,
		strings.Fields(strings.NewReplacer("--port 41234 ", "", "--host 127.0.0.1 ", "").Replace(ollama)+
			" --slot-save-path /proc/7/fd/ --cache-ram 0 --metrics --host /t/s.sock"),
		c.Behind("/t/s.sock", "/proc/7/fd/"))
	require.Equal(t, strings.Fields("-m x --cache-ram 8192 --host /t/s.sock"), command("-m x --host h --cache-ram 8192 --port 1").Behind("/t/s.sock", ""))
}

// TestSlotsThatClientsMayNotSee are still seen by us.
func TestSlotsThatClientsMayNotSee(t *testing.T) {
	for line, want := range map[string]string{
		"-m x":                      "-m x --slot-save-path d --cache-ram 0 --metrics --no-context-shift --host s",
		"-m x --no-slots --slots":   "-m x --slots --slot-save-path d --cache-ram 0 --metrics --no-context-shift --host s",
		"-m x --slots --no-slots":   "-m x --slots --slot-save-path d --cache-ram 0 --slots --metrics --no-context-shift --host s",
		"-m x --no_slots --seed 42": "-m x --seed 42 --slot-save-path d --cache-ram 0 --slots --metrics --no-context-shift --host s",
	} {
		c := command(line)
		require.Equal(t, strings.Count(want, " --slots ") == strings.Count(line, " --slots"), c.Slots(), line)
		require.Equal(t, strings.Fields(want), c.Behind("s", "d"), line)
	}
	for variable, seen := range map[string]bool{
		"LLAMA_ARG_ENDPOINT_SLOTS=off": false, "LLAMA_ARG_ENDPOINT_SLOTS=1": true, "LLAMA_ARG_NO_ENDPOINT_SLOTS=": false,
	} {
		require.Equal(t, seen, command("-m x", variable).Slots(), variable)
		require.True(t, command("-m x --slots", variable).Slots(), variable)
		require.False(t, command("-m x --no-slots", variable).Slots(), variable)
	}
}

// TestContextsThatMayBeShifted: llama-server shifts none unless it is told to, which we say again.
func TestContextsThatMayBeShifted(t *testing.T) {
	for line, shifts := range map[string]bool{
		"-m x": false, "-m x --context-shift": true, "-m x --context-shift --no-context-shift": false, "-m x --no-context-shift --context-shift": true,
	} {
		c := command(line)
		require.Equal(t, shifts, c.Shifts(), line)
		behind := strings.Join(c.Behind("s", "d"), " ")
		require.Equal(t, !shifts, strings.HasSuffix(behind, " --no-context-shift --host s"), behind)
		require.Empty(t, c.Numerics(), line)
	}
	for variable, shifts := range map[string]bool{
		"LLAMA_ARG_CONTEXT_SHIFT=1": true, "LLAMA_ARG_CONTEXT_SHIFT=off": false, "LLAMA_ARG_NO_CONTEXT_SHIFT=1": false,
	} {
		require.Equal(t, shifts, command("-m x", variable).Shifts(), variable)
		require.True(t, command("-m x --context-shift", variable).Shifts(), variable)
	}
}

// TestPlacement differs with devices, threads and batches, and not with a port.
func TestPlacement(t *testing.T) {
	base := Command{Args: []string{"-m", "m.gguf", "--port", "1", "-ngl", "20"}, Environ: []string{"B=1", "CUDA_VISIBLE_DEVICES=0", "LLAMA_ARG_PORT=7", "LLAMA_ARG_THREADS=4"}}
	require.Equal(t, "-ngl 20 CUDA_VISIBLE_DEVICES=0 LLAMA_ARG_THREADS=4", base.Placement())
	require.Equal(t, base.Placement(), Command{
		Args: []string{"-m", "n.gguf", "--port", "2", "-ngl", "20"}, Environ: []string{"LLAMA_ARG_THREADS=4", "CUDA_VISIBLE_DEVICES=0", "LLAMA_API_KEY=x"},
	}.Placement())
}

func TestKeys(t *testing.T) {
	for line, want := range map[string][2]string{
		"-m x": {}, "--api-key a": {"a", ""}, "--api-key ,a,b": {"a", ""}, "--api-key-file f": {"", "f"},
		"--api_key a --api-key b --api-key-file f": {"b", "f"},
	} {
		key, file := command(line).Keys()
		require.Equal(t, want, [2]string{key, file}, line)
	}
	key, file := command("-m x", "LLAMA_API_KEY=a", "LLAMA_ARG_API_KEY_FILE=f").Keys()
	require.Equal(t, [2]string{"a", "f"}, [2]string{key, file})
	require.Equal(t, command("-m x").Numerics(), command("-m x --api-key a --api-key-file f", "LLAMA_ARG_API_KEY_FILE=f").Numerics())
}

// TestNumbers are those of the server, such as every 30 s for pings, unless it is told others.
func TestNumbers(t *testing.T) {
	for line, want := range map[string]time.Duration{
		"-m x": 30 * time.Second, "-m x --sse-ping-interval 5": 5 * time.Second, "-m x --sse_ping_interval -1": -time.Second,
	} {
		require.Equal(t, want, command(line).Pings(), line)
	}
	require.Equal(t, 7*time.Second, command("-m x", "LLAMA_ARG_SSE_PING_INTERVAL=7").Pings())
	for line, want := range map[string][]any{"-m x": {2048, -1, false}, "--spm-infill -b 7 --n_predict 5": {7, 5, true}, ollama: {512, -1, false}} {
		size, predicted, suffixFirst := command(line).Infill()
		require.Equal(t, want, []any{size, predicted, suffixFirst}, line)
	}
}

// TestOptionsInAFile may name another model, other rows, or another address. Nobody stands before
// such a llama-server.
func TestOptionsInAFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ".config", "llama.cpp", "config.ini")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	places := []string{"HOME=" + dir, "XDG_CONFIG_HOME=" + filepath.Join(dir, ".config")}
	for text, options := range map[string]bool{
		"": false, "; rope-freq-base = 5\n# x\n\n[*]\n": false,
		"rope-freq-base = 5": true, "version = 1\r\n[*]\r\n  lora=/a\r\n": true,
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		for _, place := range places {
			require.Equal(t, options, command(ollama, place).Hidden() != "", "%q in %s", text, place)
		}
		require.Empty(t, command(ollama, "HOME="+dir, "XDG_CONFIG_HOME="+t.TempDir()).Hidden())
	}
}

// TestEachNameIsOneOption: no flag and no variable stands for two options.
func TestEachNameIsOneOption(t *testing.T) {
	seen := make(map[string]bool)
	for _, g := range Groups {
		require.NotEmpty(t, g.Why)
		for _, o := range g.Options {
			require.True(t, len(o.Flags) > 0 || o.Env != "")
			for _, name := range append(append([]string{o.Env, o.offEnv()}, o.Flags...), o.Off...) {
				require.False(t, name != "" && seen[name], name)
				seen[name] = true
			}
		}
	}
}

// TestOptionsThatChangeNoRow: Ollama chooses some of them by the memory that is free.
func TestOptionsThatChangeNoRow(t *testing.T) {
	for _, line := range []string{
		"--load-mode none", "-lm dio", "--no-mmproj-offload", "-mmdev none", "--no-mmap", "--ctx-checkpoints 4", "-nocb", "--no_webui",
		"--temp 0.2 --top-k 3", "-e", "--no-perf", "--chat-template-kwargs {}", "--threads 4", "-C f", "--cors-origins *",
	} {
		c := command("-m x " + line)
		require.Empty(t, c.Numerics(), line)
		require.Empty(t, c.Split(), line)
		require.Empty(t, c.Unknown(), line)
	}
	require.Empty(t, command("-m x", "LLAMA_ARG_LOAD_MODE=none", "LLAMA_ARG_NO_MMPROJ_OFFLOAD=1", "LLAMA_ARG_TOP_K=3", "LLAMA_ARG_SLOT_SAVE_PATH=d").Numerics())
}

// TestOptionsThatMayChangeRows: with all their values, in every form.
func TestOptionsThatMayChangeRows(t *testing.T) {
	for _, line := range []string{
		"-fa on", "--flash_attn off", "-nr", "--no-repack", "-kvu", "-no-kvu", "--override-tensor exps=CPU", "-cmoe",
		"--control-vector-layer-range 1 9", "--mmproj f", "--numa isolate", "--cache-type-k",
	} {
		require.Equal(t, strings.Fields(line), command("--seed 4 "+line).Numerics(), line)
	}
	require.Empty(t, command("--seed 4 -b").Numerics(), "without its value, which llama-server refuses")
	require.Equal(t, []string{"LLAMA_ARG_NO_REPACK="}, command("-m x", "LLAMA_ARG_NO_REPACK=").Numerics())
	c := command("-m x --threads 3", "LLAMA_ARG_NO_THREADS=1")
	require.Equal(t, []string{"LLAMA_ARG_NO_THREADS"}, c.Unknown(), "threads have no opposite")
}

// TestSplit: the options of devices are apart.
func TestSplit(t *testing.T) {
	c := command("-m x -ngl 16 --main-gpu 1 --split-mode none -fa on --fit off --no-kv-offload", "LLAMA_ARG_FIT_TARGET=512", "LLAMA_ARG_NO_KV_OFFLOAD=1")
	require.Equal(t, strings.Fields("-ngl 16 --main-gpu 1 --split-mode none --fit off --no-kv-offload LLAMA_ARG_FIT_TARGET=512 LLAMA_ARG_NO_KV_OFFLOAD=1"), c.Split())
	require.Equal(t, strings.Fields("-fa on"), c.Numerics())
}

// TestUnknownOptions count as ones that change rows, and are named.
func TestUnknownOptions(t *testing.T) {
	c := command("-m x --of-tomorrow -1 --seed 3 -new --rope-scale 2 value", "LLAMA_ARG_NEW=1", "GGML_CUDA_X=1", "LLAMA_ARG_MODEL=y")
	require.Equal(t, strings.Fields("--of-tomorrow -1 -new --rope-scale 2 value GGML_CUDA_X=1 LLAMA_ARG_NEW=1"), c.Numerics())
	require.Equal(t, strings.Fields("--of-tomorrow -new GGML_CUDA_X LLAMA_ARG_NEW"), c.Unknown())
	require.Empty(t, command(ollama).Unknown())
}
