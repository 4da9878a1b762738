package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic/segment"
	"github.com/kvtier/kvtier/internal/fakegpu"
	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/soak"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// Elastic memory of a CUDA device, on an emulated one: package fakegpu says how mean it is. With
// cardEnv the tests that limit no memory of the device run on a card, with the Ollama of KVTIER_OLLAMA.

// cardEnv is set where the machine has a CUDA card, and Ollama's library for it.
const cardEnv = "KVTIER_CARD"

func onCard() bool { return os.Getenv(cardEnv) != "" }

// emulated skips a test that needs a device of a chosen size, or more than one.
func emulated(t *testing.T) {
	t.Helper()
	if onCard() {
		t.Skip("the test needs an emulated device")
	}
}

const (
	emulatedGranule = 64 << 10
	cardGranule     = 2 << 20
	deviceMemory    = 1 << 30 // of K and V, on an emulated device
)

// installDevice is the Ollama beside the emulated GPU.
var installDevice = sync.OnceValues(func() (fakegpu.Installation, error) {
	return fakegpu.Install(filepath.Join(shared.dir, "device"))
})

// device is the program of a server with emulated GPUs, and its variables.
func device(t *testing.T, devices int) (binary string, env []string) {
	t.Helper()
	built, err := ollamatest.FindBinary()
	if err != nil {
		t.Skip(err)
	}
	if onCard() {
		return built, nil
	}
	if root, err := filepath.Abs(filepath.Join(repository, "build", "ollama", "bin", "ollama")); err != nil || built != root {
		t.Skip("the emulated GPU is for the Ollama in build/ollama")
	}
	in, err := installDevice()
	if errors.Is(err, fakegpu.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return in.Binary, []string{
		"FAKEGPU_DRIVER=" + in.Driver, "KVC_CUDA_LIBRARY=" + in.Driver, "FAKEGPU_DIR=" + t.TempDir(),
		fmt.Sprint("FAKEGPU_DEVICES=", devices), fmt.Sprint("FAKECUDA_DEVICES=", devices), "OLLAMA_SCHED_SPREAD=1",
		fmt.Sprint("FAKECUDA_MEMORY=", deviceMemory), fmt.Sprint("FAKECUDA_GRANULARITY=", emulatedGranule), "FAKEGPU_DELAY_US=500",
	}
}

// startOnDevice starts a server whose models are on emulated GPUs.
func startOnDevice(t *testing.T, devices int, env ...string) *server {
	t.Helper()
	binary, more := device(t, devices)
	s := startOptions(t, "", ollamatest.Options{Binary: binary, Env: append(more, env...)})
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Server.Logs())
		}
	})
	return s
}

// requireOnDevice fails unless all layers are on a device, and K and V are elastic or not.
func (s *server) requireOnDevice(elastic bool) {
	s.t.Helper()
	logs := s.Logs()
	require.Contains(s.t, logs, fmt.Sprintf("offloaded %d/%d layers to GPU", shape.Layers+1, shape.Layers+1))
	require.Equal(s.t, elastic, strings.Contains(logs, "_cuda0 limit="))
	require.NotContains(s.t, logs, "level=WARN msg=\"kv elastic")
}

// deviceUsed is the memory of K and V on all devices, in bytes.
func (s *server) deviceUsed(segments string) (used int64) {
	s.t.Helper()
	all, err := segment.List()
	require.NoError(s.t, err)
	for _, one := range all {
		if strings.HasPrefix(one.Name, segments+"_") && one.State == segment.Live {
			require.Contains(s.t, one.Name, "_cuda")
			used += one.Used
		}
	}
	return used
}

// segmentsOf is the beginning of the names of a server's segments.
func segmentsOf(t *testing.T, env []string) string {
	t.Helper()
	for _, v := range env {
		if name, ok := strings.CutPrefix(v, "KVCACHED_IPC_NAME="); ok {
			return name
		}
	}
	require.Fail(t, "no name of segments")
	return ""
}

// TestDeviceChangesNothing: on a device, answers with elastic memory are those of stock memory to the
// last bit: through turns, other conversations and shifts, restored or not, on one device and on two.
func TestDeviceChangesNothing(t *testing.T) {
	on := elasticOn(t)
	for _, c := range []struct {
		name, cacheType, tiering string
		devices                  int
	}{{"f16", "f16", "0", 1}, {"q8_0 with tiering", "q8_0", "1", 1}, {"two devices with tiering", "f16", "1", 2}} {
		t.Run(c.name, func(t *testing.T) {
			if c.devices > 1 {
				emulated(t)
			}
			run := func(more ...string) []answer {
				s := startOnDevice(t, c.devices, append(more,
					"OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_CACHE_TYPE="+c.cacheType, "OLLAMA_NUM_PARALLEL=2",
					"OLLAMA_KV_TIERING="+c.tiering, "OLLAMA_KV_TIER_LOCAL="+t.TempDir(), "OLLAMA_KV_TIER_TEST=1")...)
				answers := s.turns(c.tiering == "1")
				s.requireOnDevice(len(more) > 0)
				require.Equal(t, len(more) > 0 && c.devices > 1, strings.Contains(s.Logs(), "_cuda1 limit="))
				return answers
			}
			stock, elastic := run(), run(on...)
			for i := range stock {
				requireSame(t, stock[i], elastic[i], fmt.Sprintf("request %d", i))
			}
		})
	}
}

// TestDeviceMemoryFollowsUse: K and V hold as much of a device as their tokens take, in granules, and
// give it back after a conversation has left, while another computes and while none does.
func TestDeviceMemoryFollowsUse(t *testing.T) {
	const (
		context = 32768
		slots   = 4
		tokens  = 5000
	)
	granule := int64(emulatedGranule)
	if onCard() {
		granule = cardGranule
	}
	few := 2 * 3 * 2 * granule // K and V of 3 layers, a block and its neighbour
	on := elasticOn(t)
	segments := segmentsOf(t, on)
	s := startOnDevice(t, 1, append(on, fmt.Sprint("OLLAMA_NUM_PARALLEL=", slots), "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_TIERING=0")...)
	long := func(r *ollamatest.Request) { r.Options["num_ctx"] = context }
	settles := func(from, to int64) {
		t.Helper()
		require.Eventually(t, func() bool { used := s.deviceUsed(segments); return from <= used && used <= to }, timeout, 50*time.Millisecond,
			"between %d and %d bytes, not %d", from, to, s.deviceUsed(segments))
	}
	s.ask(prompt(t, 20, 73), 2, long)
	settles(1, few)
	s.ask(prompt(t, tokens, 74), 2, long)
	settles(tokens*bytesPerToken, tokens*bytesPerToken+2*few)
	s.emptySlots(slots, long)
	settles(1, slots*few)
	s.requireOnDevice(true)
}

// TestTwoModelsShareADevice: two models are loaded whose slots together reach further than the
// device's memory. With stock memory the second takes the first one's place.
func TestTwoModelsShareADevice(t *testing.T) {
	emulated(t)
	on := elasticOn(t)
	const context, slots = 16384, 8
	wide := testmodel.Shape{Arch: "qwen3", Layers: 4, Embed: 64, Heads: 8, KVHeads: 8, HeadDim: 64, FFN: 64}.WithDefaults()
	reserved := 457 << 20 // of each device, by Ollama
	memory := int64(reserved) + 3*context*slots*wide.KVBytesPerToken()/2
	env := []string{
		fmt.Sprint("OLLAMA_NUM_PARALLEL=", slots), "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_TIERING=0", "OLLAMA_MAX_LOADED_MODELS=2",
		fmt.Sprint("FAKEGPU_MEMORY=", memory),
	}
	loaded := func(more ...string) int {
		s := startOnDevice(t, 1, append(more, env...)...)
		for seed, name := range []string{"wide", "wide-too"} {
			file := filepath.Join(t.TempDir(), name+".gguf")
			wide.Seed = int64(seed)
			require.NoError(t, testmodel.Write(file, wide))
			s.create(name, file)
			require.NoError(t, s.askWide(name, context), name)
		}
		require.Equal(t, 2, strings.Count(s.Logs(), "offloaded 5/5 layers to GPU"), "a load was placed elsewhere")
		runners, err := s.Runners()
		require.NoError(t, err)
		return len(runners)
	}
	require.Equal(t, 1, loaded(), "stock")
	require.Equal(t, 2, loaded(on...), "elastic")
}

// TestDeviceRestores: a conversation comes back from the store to the last bit, after another one and
// after a crash, with elastic memory and without.
func TestDeviceRestores(t *testing.T) {
	for _, c := range []struct {
		flash, cacheType string
		elastic          bool
	}{{"1", "f16", false}, {"0", "f16", false}, {"1", "f16", true}, {"0", "f16", true}, {"1", "q8_0", true}} {
		t.Run(fmt.Sprintf("flash %s %s elastic %v", c.flash, c.cacheType, c.elastic), func(t *testing.T) {
			var on []string
			if c.elastic {
				on = elasticOn(t)
			}
			s := startOnDevice(t, 1, append(on, "OLLAMA_FLASH_ATTENTION="+c.flash, "OLLAMA_KV_CACHE_TYPE="+c.cacheType,
				"OLLAMA_NUM_PARALLEL=1", "OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL="+filepath.Join(t.TempDir(), "pages"), "OLLAMA_KV_TIER_TEST=1")...)
			const n = 5*pageTokens + 133
			text := prompt(t, n, 76)
			require.Zero(t, s.ask(text, 40).restored)
			held := s.ask(text, 40)
			s.ask(prompt(t, n+77, 77), 8)
			s.requireRestored(text, n, held, "after another conversation")
			s.crash()
			s.requireRestored(text, n, held, "after kill -9")
			s.requireOnDevice(c.elastic)
		})
	}
}

// TestServersShareADevice: two servers with elastic memory of one device compute at once, and each
// answers as it does alone.
func TestServersShareADevice(t *testing.T) {
	conversation := func(s *server, seed int64) (answers []answer) {
		for i, tokens := range []int{900, 1700, 40, 1200} {
			answers = append(answers, s.ask(prompt(s.t, tokens, seed+int64(i)), 30))
		}
		return answers
	}
	processes := t.TempDir() // of an emulated device, which counts all of their memory except K and V
	onDevice := func() *server {
		return startOnDevice(t, 1, append(elasticOn(t), "FAKEGPU_DIR="+processes, "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_NUM_PARALLEL=1", "OLLAMA_KV_TIERING=0")...)
	}
	alone := conversation(onDevice(), 300)
	for i, s := range []*server{onDevice(), onDevice()} {
		t.Run(fmt.Sprint("server ", i), func(t *testing.T) {
			t.Parallel()
			s := &server{Server: s.Server, t: t}
			for j, got := range conversation(s, 300) {
				requireSame(t, alone[j], got, fmt.Sprintf("request %d", j))
			}
			s.requireOnDevice(true)
		})
	}
}

// TestDeviceSoak plays random histories on a server with elastic memory of a device and with tiering,
// and on a stock one without a device.
func TestDeviceSoak(t *testing.T) {
	emulated(t)
	on := elasticOn(t)
	concurrent := []int{4}
	if os.Getenv(soakLongEnv) != "" {
		concurrent = append(concurrent, 1)
	}
	for _, slots := range concurrent {
		t.Run(fmt.Sprint("slots ", slots), func(t *testing.T) {
			forEachSoak(t, slots, func(t *testing.T, setup soakSetup, seed uint64) {
				binary, env := device(t, 1)
				setup.binary, setup.tier = binary, append(append(append([]string{}, setup.tier...), env...), on...)
				setup.common = append(setup.common, "OLLAMA_FLASH_ATTENTION=1")
				config := soak.Config{Rounds: 20, Chats: 3, Slots: 1, Context: soakContext}
				if slots > 1 {
					config.Chats, config.Slots = 6, slots
				}
				playSoak(t, setup, soak.New(seed, config))
			})
		})
	}
}

// TestDeviceIsFull: a prompt that a device has no memory for fails with the numbers, and the runner goes
// on. A smaller one takes the memory of a conversation that nobody waits for.
func TestDeviceIsFull(t *testing.T) {
	emulated(t)
	on := elasticOn(t)
	const margin, room = 256 << 20, 6 << 20 // 4,096 tokens
	s := startOnDevice(t, 1, append(on, "OLLAMA_NUM_PARALLEL=2", "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_TIERING=0", "OLLAMA_MULTIUSER_CACHE=1",
		fmt.Sprint("FAKECUDA_MEMORY=", margin+room))...)
	long := func(r *ollamatest.Request) { r.Options["num_ctx"] = 16384 }
	s.ask(prompt(t, 20, 73), 2, long)
	runners, err := s.Runners()
	require.NoError(t, err)
	_, err = s.Generate(s.context(), requestFor(prompt(t, 6000, 74), 2, long))
	require.ErrorContains(t, err, "MiB more are needed, and CUDA device 0 has")
	for seed := range int64(3) {
		s.ask(prompt(t, 2500, 75+seed), 2, long)
	}
	after, err := s.Runners()
	require.NoError(t, err)
	require.Equal(t, runners, after, "the runner ended")
}
