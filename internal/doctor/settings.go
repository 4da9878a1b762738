package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// Names of variables.
const (
	tieringVar  = "OLLAMA_KV_TIERING"
	localVar    = tierenv.LocalVariable
	localGBVar  = "OLLAMA_KV_TIER_LOCAL_GB"
	remoteVar   = "OLLAMA_KV_TIER_REMOTE"
	remoteGBVar = "OLLAMA_KV_TIER_REMOTE_GB"
	instanceVar = "OLLAMA_KV_INSTANCE_ID"
)

// known are the variables with the prefixes of ours, by their ends.
var known = map[string][]string{
	"OLLAMA_KV_": {
		"TIERING", "TIER_LOCAL", "TIER_LOCAL_GB", "TIER_REMOTE", "TIER_REMOTE_GB", "TIER_RAM_GB", "TIER_WARM_GB",
		"TIER_WRITE_GB_PER_DAY", "TIER_COMPRESS", "TIER_COLD_TYPE", "TIER_NAMESPACE", "TIER_PAGE_TOKENS", "TIER_REUSE", "TIER_SPLIT", "TIER_TEST",
		"INSTANCE_ID", "METRICS_ADDR",
		"CACHE_TYPE", // Ollama's own
	},
	"OLLAMA_PAGED_": {"ATTN", "CHUNK_SIZE", "HOST_GB", "VRAM_GB", "CPU_WORKERS", "SPILL_DIR", "SPILL_GB"},
}

// unknownName reports whether a name looks like one of ours and is none.
func unknownName(name string) bool {
	for prefix, ends := range known {
		if end, ok := strings.CutPrefix(name, prefix); ok {
			return !slices.Contains(ends, end)
		}
	}
	return false
}

// badValue is a value that cannot be used.
type badValue struct{ name, value, want, example string }

// settings are the meaning of a server's variables.
type settings struct {
	on, asked               bool // asked: on, or a value that cannot be read
	local, remote           string
	given                   bool // local is named, and no default
	localBytes, remoteBytes int64
	split                   bool // budgets follow from OLLAMA_KV_TIER_SPLIT
	fatal                   []badValue
	unknown                 []string
}

// budgets returns the budget of a tier.
func (s settings) budget(tier string) int64 {
	if tier == remoteTier {
		return s.remoteBytes
	}
	return s.localBytes
}

// value reads a variable as Ollama does.
func value(set map[string]string, name string) string { return env.Trim(set[name]) }

// truth reads a variable that turns something on.
func truth(set map[string]string, name string) bool {
	on, err := strconv.ParseBool(value(set, name))
	return err == nil && on
}

// settingsOf reads variables by the rules of package tierenv, which reads this process's own.
func settingsOf(set map[string]string, home string) settings {
	s := settings{local: value(set, localVar), remote: value(set, remoteVar), split: value(set, "OLLAMA_KV_TIER_SPLIT") != ""}
	refuse := func(name, want, example string) {
		s.fatal = append(s.fatal, badValue{name, value(set, name), want, example})
	}
	if v := value(set, tieringVar); v != "" {
		on, err := strconv.ParseBool(v)
		if s.on, s.asked = on, on || err != nil; err != nil {
			refuse(tieringVar, "1 or 0", "1")
		}
	}
	var unused int64
	for _, b := range []struct {
		name  string
		bytes *int64
		unset int64
	}{
		{localGBVar, &s.localBytes, tierenv.DefaultLocalBytes}, {remoteGBVar, &s.remoteBytes, 0},
		{"OLLAMA_KV_TIER_RAM_GB", &unused, 0}, {"OLLAMA_KV_TIER_WRITE_GB_PER_DAY", &unused, 0},
	} {
		n, ok := env.ParseGigabytes(value(set, b.name), b.unset)
		if *b.bytes = n; !ok {
			refuse(b.name, "a number of gigabytes", "20")
		}
	}
	for _, name := range []string{localVar, remoteVar} {
		if path := value(set, name); path != "" && !filepath.IsAbs(path) {
			refuse(name, "an absolute path", "/var/lib/ollama-kv")
		}
	}
	instance := value(set, instanceVar)
	if instance != "" && !tierenv.IsInstance(instance) {
		refuse(instanceVar, "a name of letters, digits, dots, hyphens and underscores", "gpu0")
		instance = ""
	}
	for name := range set {
		if unknownName(name) {
			s.unknown = append(s.unknown, name)
		}
	}
	slices.Sort(s.unknown)
	if s.given = s.local != ""; !s.given && home != "" {
		s.local = filepath.Join(home, filepath.FromSlash(tierenv.DefaultRoot))
	}
	if instance != "" && s.local != "" {
		s.local = filepath.Join(s.local, tierenv.InstancesDir, instance)
	}
	return s
}

// bytesText prints a size.
func bytesText(n int64) string {
	switch f := float64(n); {
	case n >= 1e12:
		return fmt.Sprintf("%.1f TB", f/1e12)
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", f/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.0f MB", f/1e6)
	default:
		return fmt.Sprintf("%d bytes", n)
	}
}
