package doctor

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// Names of variables.
const (
	tieringVar   = "OLLAMA_KV_TIERING"
	localVar     = tierenv.LocalVariable
	localGBVar   = "OLLAMA_KV_TIER_LOCAL_GB"
	remoteVar    = "OLLAMA_KV_TIER_REMOTE"
	remoteGBVar  = "OLLAMA_KV_TIER_REMOTE_GB"
	ramVar       = "OLLAMA_KV_TIER_RAM_GB"
	writeVar     = "OLLAMA_KV_TIER_WRITE_GB_PER_DAY"
	instanceVar  = "OLLAMA_KV_INSTANCE_ID"
	modelsVar    = "OLLAMA_MODELS"
	pagedVar     = "OLLAMA_PAGED_ATTN"
	flashVar     = "OLLAMA_FLASH_ATTENTION"
	newEngineVar = "OLLAMA_NEW_ENGINE"
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

// compared are the variables that decide where pages are and which are found.
var compared = []string{localVar, localGBVar, remoteVar, remoteGBVar, instanceVar, "OLLAMA_KV_TIER_NAMESPACE", "OLLAMA_KV_TIER_PAGE_TOKENS", modelsVar}

// badValue is a value that cannot be used.
type badValue struct{ name, value, want string }

// settings are the meaning of a server's variables.
type settings struct {
	on, asked                                 bool // asked: on, or a value that cannot be read
	local, remote                             string
	given                                     bool // local is named, and no default
	localBytes, remoteBytes, ramBytes, writes int64
	instance                                  string
	split                                     bool // budgets follow from OLLAMA_KV_TIER_SPLIT
	fatal, ignored                            []badValue
	unknown                                   []string
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

var instanceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// settingsOf reads variables by the rules of package tierenv, which reads this process's own.
func settingsOf(set map[string]string, home string) settings {
	s := settings{local: value(set, localVar), remote: value(set, remoteVar), instance: value(set, instanceVar)}
	if v := value(set, tieringVar); v != "" {
		on, err := strconv.ParseBool(v)
		s.on, s.asked = on, on || err != nil
	}
	for _, b := range []struct {
		name  string
		bytes *int64
		unset int64
	}{
		{localGBVar, &s.localBytes, 20 * env.BytesPerGB}, {remoteGBVar, &s.remoteBytes, 0}, {ramVar, &s.ramBytes, 0}, {writeVar, &s.writes, 0},
	} {
		n, ok := gigabytes(value(set, b.name), b.unset)
		if *b.bytes = n; !ok {
			s.fatal = append(s.fatal, badValue{b.name, value(set, b.name), "a number of gigabytes"})
		}
	}
	for name, path := range map[string]string{localVar: s.local, remoteVar: s.remote} {
		if path != "" && !filepath.IsAbs(path) {
			s.fatal = append(s.fatal, badValue{name, path, "an absolute path"})
		}
	}
	if s.instance != "" && !instanceName.MatchString(s.instance) {
		s.fatal = append(s.fatal, badValue{instanceVar, s.instance, "a name of letters, digits, dots, hyphens and underscores"})
	}
	s.split = value(set, "OLLAMA_KV_TIER_SPLIT") != ""
	s.readOthers(set)
	if s.given = s.local != ""; !s.given && home != "" {
		s.local = filepath.Join(home, filepath.FromSlash(tierenv.DefaultRoot))
	}
	if s.instance != "" && s.local != "" && instanceName.MatchString(s.instance) {
		s.local = filepath.Join(s.local, "instances", s.instance)
	}
	return s
}

// readOthers notes values that count for nothing, and names that nobody reads.
func (s *settings) readOthers(set map[string]string) {
	ignore := func(name, want string, ok bool) {
		if v := value(set, name); v != "" && !ok {
			s.ignored = append(s.ignored, badValue{name, v, want})
		}
	}
	n, err := strconv.Atoi(value(set, "OLLAMA_KV_TIER_PAGE_TOKENS"))
	ignore("OLLAMA_KV_TIER_PAGE_TOKENS", "a whole number from 16 to 4096", err == nil && n >= 16 && n <= 4096)
	_, err = strconv.ParseBool(value(set, "OLLAMA_KV_TIER_COMPRESS"))
	ignore("OLLAMA_KV_TIER_COMPRESS", "0 or 1", err == nil)
	_, _, err = encoding.ParseCold(value(set, "OLLAMA_KV_TIER_COLD_TYPE"))
	ignore("OLLAMA_KV_TIER_COLD_TYPE", "q8_0, q4_0 or int4, or two of these for K and V", err == nil)
	ignore("OLLAMA_KV_TIER_COLD_TYPE", "a variable beside OLLAMA_KV_TIER_REMOTE, without which no page moves down", err != nil || s.remote != "")
	ignore("OLLAMA_KV_TIER_REUSE", "exact or shifted", slices.Contains([]string{"exact", "shifted"}, value(set, "OLLAMA_KV_TIER_REUSE")))
	_, ok := gigabytes(value(set, "OLLAMA_KV_TIER_WARM_GB"), 0)
	ignore("OLLAMA_KV_TIER_WARM_GB", "a number of gigabytes", ok)
	for name := range set {
		if unknownName(name) {
			s.unknown = append(s.unknown, name)
		}
	}
	slices.Sort(s.unknown)
	slices.SortFunc(s.fatal, func(a, b badValue) int { return strings.Compare(a.name, b.name) })
}

// gigabytes reads a size in bytes.
func gigabytes(text string, unset int64) (int64, bool) {
	if text == "" {
		return unset, true
	}
	gb, err := strconv.ParseFloat(text, 64)
	if err != nil || !(gb >= 0) || gb*env.BytesPerGB > math.MaxInt64/2 {
		return 0, false
	}
	return int64(gb * env.BytesPerGB), true
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
