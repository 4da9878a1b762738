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
	tieringVar  = tierenv.TieringVariable
	localVar    = tierenv.LocalVariable
	localGBVar  = tierenv.LocalGBVariable
	remoteVar   = tierenv.RemoteVariable
	remoteGBVar = tierenv.RemoteGBVariable
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

// settings are the meaning of a server's variables.
type settings struct {
	tierenv.Config
	on, asked bool // asked: on, or a value that cannot be read
	given     bool // the local directory is named, and no default
	bad       []tierenv.BadValue
	unknown   []string
}

// budget returns the budget of a tier.
func (s settings) budget(tier string) int64 {
	if tier == remoteTier {
		return s.RemoteBytes
	}
	return s.LocalBytes
}

// value reads a variable as Ollama does.
func value(set map[string]string, name string) string { return env.Trim(set[name]) }

// truth reads a variable that turns something on.
func truth(set map[string]string, name string) bool {
	on, err := strconv.ParseBool(value(set, name))
	return err == nil && on
}

// settingsOf reads variables as their server does.
func settingsOf(set map[string]string, home string) settings {
	s := settings{given: value(set, localVar) != ""}
	usual := ""
	if home != "" {
		usual = filepath.Join(home, filepath.FromSlash(tierenv.DefaultRoot))
	}
	s.Config, s.on, s.bad = tierenv.Strict(func(name string) string { return value(set, name) }, usual)
	s.asked = s.on || slices.ContainsFunc(s.bad, func(b tierenv.BadValue) bool { return b.Variable == tieringVar })
	for name := range set {
		if unknownName(name) {
			s.unknown = append(s.unknown, name)
		}
	}
	slices.Sort(s.unknown)
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
