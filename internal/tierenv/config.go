package tierenv

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/memory"
)

const (
	// DefaultReadAheadBytes bounds the bytes read ahead by default: some pages of each of
	// the last conversations with a large model, in a second or two from an SSD.
	DefaultReadAheadBytes = 2 * env.BytesPerGB

	// DefaultLocalBytes is the default of OLLAMA_KV_TIER_LOCAL_GB.
	DefaultLocalBytes = 20 * env.BytesPerGB

	// DefaultShareBytes bounds the bytes that a team writes to its engine in a day by default.
	DefaultShareBytes = 200 * env.BytesPerGB

	// readAheadShare divides the available memory: one eighth of it may be filled by reading ahead.
	readAheadShare = 8
)

// Config holds the settings of the environment.
type Config struct {
	// Local is OLLAMA_KV_TIER_LOCAL: a directory on a local disk. The default is [DefaultRoot]
	// below the home directory, or [FormerRoot]. With an Instance, Local is the instance's directory below the named one.
	Local string
	// LocalBytes is OLLAMA_KV_TIER_LOCAL_GB, default 20 GB. Zero means all but 5 % of the filesystem.
	LocalBytes int64
	// Remote is OLLAMA_KV_TIER_REMOTE: any mounted directory, or empty for none. Of an address it is what may be
	// shown, without password and parameters.
	Remote string
	// Address is OLLAMA_KV_TIER_REMOTE where that is the address of an engine, else empty. It may have a password.
	Address string
	// KeyFile is OLLAMA_KV_TIER_KEY_FILE: the keys of a team, with which what is in an engine is sealed.
	KeyFile string
	// RemoteBytes is OLLAMA_KV_TIER_REMOTE_GB, default 0: all but 5 % of the filesystem.
	RemoteBytes int64
	// RAMBytes is OLLAMA_KV_TIER_RAM_GB, default 0: the memory that all runners of a server
	// together may fill with pages.
	RAMBytes int64
	// Split is OLLAMA_KV_TIER_SPLIT, or nil: [Config.ApplySplit] then makes budgets of the
	// shares as soon as a model's context is known.
	Split *Split
	// ReadAheadBytes is OLLAMA_KV_TIER_WARM_GB: the bytes of the latest conversations that a model reads
	// ahead when it is loaded. The default is an eighth of the memory available then, at most
	// DefaultReadAheadBytes, and DefaultReadAheadBytes where the available memory is not known.
	ReadAheadBytes int64
	// WriteBytesPerDay is OLLAMA_KV_TIER_WRITE_GB_PER_DAY, default 0: no limit.
	WriteBytesPerDay int64
	// ShareBytesPerDay is OLLAMA_KV_TIER_SHARE_GB_PER_DAY: [diskstore.Options.ThroughPerDay]. The default is
	// DefaultShareBytes for an engine, and 0 for a directory.
	ShareBytesPerDay int64
	// Eviction is OLLAMA_KV_TIER_EVICTION: which pages leave a full tier first. The default is "use".
	Eviction diskstore.Eviction
	// Compress is OLLAMA_KV_TIER_COMPRESS.
	Compress bool
	// CompressRemote: pages are compressed on their way to an engine, unless OLLAMA_KV_TIER_COMPRESS is set.
	CompressRemote bool
	// Cold is OLLAMA_KV_TIER_COLD_TYPE: the encodings of pages that move to Remote. The zero value
	// keeps pages as they are. [Config.ColdFor] says whether a model can have them.
	Cold diskstore.ColdTypes
	// Instance is OLLAMA_KV_INSTANCE_ID: the name of a server that keeps its local pages to itself, or empty.
	Instance string
	// Namespace is OLLAMA_KV_TIER_NAMESPACE: servers with different namespaces never see each other's pages.
	Namespace string
	// PageTokens is OLLAMA_KV_TIER_PAGE_TOKENS, default 256.
	PageTokens int
	// Shifted: OLLAMA_KV_TIER_REUSE is "shifted". Text computed at another position is
	// reused, too, as an approximation. The default is "exact".
	Shifted bool
	// Test is OLLAMA_KV_TIER_TEST: cells are filled with NaN before rows are restored, and
	// pages are read even where computing them would be quicker.
	Test bool
}

// Enabled reports whether OLLAMA_KV_TIERING asks for tiering. A value that is neither true nor false counts
// as true here, so that [FromEnvironment] can refuse the value with an error.
func Enabled() bool { return env.Asked(TieringVariable) }

// FromEnvironment reads the variables. An error means that tiering stays off: a value cannot
// be read, and its default could delete pages or put them into a wrong place. Other
// unreadable values are logged and take their defaults.
func FromEnvironment(log *slog.Logger) (Config, error) {
	c, _, err := fromEnvironment(log, localRoot)
	return c, err
}

// fromEnvironment is FromEnvironment, and also returns the root that choose chose.
func fromEnvironment(log *slog.Logger, choose func() (root, error)) (Config, root, error) {
	local, err := choose()
	c, _, bad := Strict(env.Value, local.path)
	errs := []error{err}
	for _, b := range bad {
		errs = append(errs, b)
	}
	c.Namespace = env.Value("OLLAMA_KV_TIER_NAMESPACE")
	c.Compress = setting(log, "OLLAMA_KV_TIER_COMPRESS", false, "0 or 1", parseBool)
	c.CompressRemote = c.Address != "" && env.Value("OLLAMA_KV_TIER_COMPRESS") == ""
	c.Cold = coldTypes(log)
	c.Test = setting(log, "OLLAMA_KV_TIER_TEST", false, "0 or 1", parseBool)
	c.Shifted = setting(log, "OLLAMA_KV_TIER_REUSE", "exact", "exact or shifted", func(v string) (string, bool) {
		return v, v == "exact" || v == "shifted"
	}) == "shifted"
	c.Eviction = setting(log, "OLLAMA_KV_TIER_EVICTION", diskstore.EvictByUse, "use or lru", diskstore.ParseEviction)
	c.ReadAheadBytes = readAheadBytes(log)
	c.PageTokens = setting(log, "OLLAMA_KV_TIER_PAGE_TOKENS", diskstore.DefaultPageTokens, "16 to 4096", func(v string) (int, bool) {
		n, err := strconv.Atoi(v)
		return n, err == nil && n >= 16 && n <= 4096
	})
	return c, local, errors.Join(errs...)
}

// Settle is [FromEnvironment], and sets the variable of the local directory where it is
// empty: the choice depends on the directories on disk, and a server and all its runners
// must use the same one. No directory is settled where another variable turns tiering off.
func Settle(log, warnings *slog.Logger) (Config, error) { return settle(log, warnings, localRoot) }

func settle(log, warnings *slog.Logger, choose func() (root, error)) (Config, error) {
	c, local, err := fromEnvironment(warnings, choose)
	if err == nil && local.why != LocalVariable {
		local.log(log)
		_ = os.Setenv(LocalVariable, local.path) // cannot fail for a path that was found
	}
	return c, err
}

func usesDefault(log *slog.Logger, name string, unset any, more ...any) {
	log.Warn("kv tier: invalid environment variable, using default", append([]any{"key", name, "value", env.Value(name), "default", unset}, more...)...)
}

// setting reads a variable whose default does no harm.
func setting[T any](log *slog.Logger, name string, unset T, allowed string, parse func(value string) (T, bool)) T {
	value := env.Value(name)
	if value == "" {
		return unset
	}
	v, ok := parse(value)
	if !ok {
		usesDefault(log, name, unset, "allowed", allowed)
		return unset
	}
	return v
}

func parseBool(value string) (bool, bool) {
	on, err := strconv.ParseBool(value)
	return on, err == nil
}

// readAheadBytes reads a budget whose default does no harm.
func readAheadBytes(log *slog.Logger) int64 {
	unset := int64(DefaultReadAheadBytes)
	if available, err := memory.Available(); err == nil {
		unset = int64(min(available/readAheadShare, DefaultReadAheadBytes))
	}
	n, err := env.Gigabytes("OLLAMA_KV_TIER_WARM_GB", unset)
	if err != nil {
		usesDefault(log, "OLLAMA_KV_TIER_WARM_GB", float64(unset)/env.BytesPerGB)
		return unset
	}
	return n
}

const coldVariable = "OLLAMA_KV_TIER_COLD_TYPE"

// coldTypes reads OLLAMA_KV_TIER_COLD_TYPE. An unknown value loses nothing: pages stay as they are.
func coldTypes(log *slog.Logger) diskstore.ColdTypes {
	value := env.Value(coldVariable)
	if value == "" {
		return diskstore.ColdTypes{}
	}
	k, v, err := encoding.ParseCold(value)
	if err != nil {
		usesDefault(log, coldVariable, "none", "error", err)
	}
	return diskstore.ColdTypes{K: k, V: v}
}

// ColdFor returns the encodings of a model's pages that move to the remote tier. unsuited says why
// the model can have none; "" that it can. The reason is logged if the variable is set.
func (c Config) ColdFor(unsuited string, log *slog.Logger) diskstore.ColdTypes {
	none := diskstore.ColdTypes{}
	if c.Cold == none {
		return none
	}
	if unsuited == "" && c.Remote == "" {
		unsuited = "no page moves down without OLLAMA_KV_TIER_REMOTE"
	}
	if unsuited == "" {
		return c.Cold
	}
	log.Info("kv tier: no page becomes lossy", "variable", coldVariable, "reason", unsuited)
	return none
}

// ColdText is a value of OLLAMA_KV_TIER_COLD_TYPE for encodings, and "" for none.
func ColdText(c diskstore.ColdTypes) string {
	switch {
	case c == diskstore.ColdTypes{}:
		return ""
	case c.K == c.V:
		return c.K.String()
	}
	return c.K.String() + "," + c.V.String()
}

// Variables whose values can keep tiering off.
const (
	TieringVariable  = "OLLAMA_KV_TIERING"
	LocalVariable    = "OLLAMA_KV_TIER_LOCAL" // names the directory of the local tier
	LocalGBVariable  = "OLLAMA_KV_TIER_LOCAL_GB"
	RemoteVariable   = "OLLAMA_KV_TIER_REMOTE"
	RemoteGBVariable = "OLLAMA_KV_TIER_REMOTE_GB"
	KeyFileVariable  = "OLLAMA_KV_TIER_KEY_FILE"
	ramGBVariable    = "OLLAMA_KV_TIER_RAM_GB"
	SplitVariable    = "OLLAMA_KV_TIER_SPLIT" // the shares of tiers
	InstanceVariable = "OLLAMA_KV_INSTANCE_ID"
)

// BadValue is the value of a variable that keeps tiering off.
type BadValue struct {
	Variable, Value string // of an address without password
	Says            string // such as "is not an absolute path"
	Example         string // of a value that can be used
}

func (b BadValue) Error() string { return fmt.Sprintf("%s=%q %s", b.Variable, b.Value, b.Says) }

// InstancesDir is the directory of servers with an id, below OLLAMA_KV_TIER_LOCAL.
const InstancesDir = "instances"

// instanceID matches names that are one element of a path on every system.
var instanceID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// address matches addresses, engine those of engines: one that is written wrong has a password, too.
var (
	address = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+://`)
	engine  = regexp.MustCompile(`^(?:s3|valkeys?|rediss?|unix)://`)
)

// shownAddress returns what may be shown of an address; ok is false for a directory.
func shownAddress(value string) (shown string, ok bool) {
	scheme := address.FindString(value)
	if scheme == "" {
		return "", false
	}
	u, err := url.Parse(value)
	if err != nil {
		return scheme + "…", true // the password may be anywhere
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String(), true
}

// Strict reads the variables of which a value that cannot be read keeps tiering off, of this
// process or another one, and reports whether they turn it on. local is the directory of pages
// where no variable names one.
//
// The default in place of such a value may do harm: the default budget of a disk may be smaller
// than the stored pages, and would delete some, that of the daily limit may wear a disk that the
// user spares, and pages may land in a wrong place. Budgets of memory follow the same rule.
func Strict(value func(variable string) string, local string) (c Config, on bool, bad []BadValue) {
	refuse := func(variable, says, example string) {
		bad = append(bad, BadValue{variable, value(variable), says, example})
	}
	if v := value(TieringVariable); v != "" {
		var err error
		if on, err = strconv.ParseBool(v); err != nil {
			refuse(TieringVariable, "is neither 1 nor 0", "1")
		}
	}
	var share int64
	if engine.MatchString(value(RemoteVariable)) {
		share = DefaultShareBytes
	}
	for _, budget := range []struct {
		bytes    *int64
		variable string
		unset    int64
	}{
		{&c.LocalBytes, LocalGBVariable, DefaultLocalBytes},
		{&c.RemoteBytes, RemoteGBVariable, 0},
		{&c.RAMBytes, ramGBVariable, 0},
		{&c.WriteBytesPerDay, "OLLAMA_KV_TIER_WRITE_GB_PER_DAY", 0},
		{&c.ShareBytesPerDay, "OLLAMA_KV_TIER_SHARE_GB_PER_DAY", share},
	} {
		var ok bool
		if *budget.bytes, ok = env.ParseGigabytes(value(budget.variable), budget.unset); !ok {
			refuse(budget.variable, "is not a number of gigabytes", "20")
		}
	}
	if text := value(SplitVariable); text != "" {
		var err error
		if c.Split, err = parseSplit(text); err != nil {
			refuse(SplitVariable, "cannot be used: "+err.Error(), "25,25,50")
		} else {
			c.Split.RAMSet, c.Split.LocalSet = value(ramGBVariable) != "", value(LocalGBVariable) != ""
		}
	}
	bad = append(bad, c.places(value, local)...)
	switch c.Instance = value(InstanceVariable); {
	case c.Instance == "":
	case !instanceID.MatchString(c.Instance):
		refuse(InstanceVariable, "is not a name of 1 to 64 letters, digits, dots, hyphens and underscores that begins with a letter or a digit", "gpu0")
	case c.Local != "":
		c.Local = filepath.Join(c.Local, InstancesDir, c.Instance)
	}
	return c, on, bad
}

// places reads the variables of directories, files and addresses.
func (c *Config) places(value func(variable string) string, local string) (bad []BadValue) {
	c.Local, c.Remote, c.KeyFile = cmp.Or(value(LocalVariable), local), value(RemoteVariable), value(KeyFileVariable)
	paths := [][2]string{{LocalVariable, "/var/lib/ollama-kv"}, {KeyFileVariable, "/etc/kvtier/team.key"}}
	if shown, ok := shownAddress(c.Remote); !ok {
		paths = append(paths, [2]string{RemoteVariable, "/mnt/kv/pages"})
	} else if c.Remote, c.Address = shown, c.Remote; !engine.MatchString(c.Address) {
		bad = append(bad, BadValue{RemoteVariable, shown, "is the address of no engine, which begins with s3://, valkey:// or valkeys://", "s3://bucket/prefix"})
	}
	for _, p := range paths {
		if path := value(p[0]); path != "" && !filepath.IsAbs(path) {
			bad = append(bad, BadValue{p[0], path, "is not an absolute path", p[1]})
		}
	}
	return bad
}

// Schema changes when the meaning of a page's rows changes.
const Schema = "1"

// Keys of the identity. Each is part of the fingerprint, and a page is used only where all
// are equal. A manifest beside the pages has the identity for people and tools.
const (
	KeySchema     = "schema"
	KeyWeights    = "weights"    // SHA-256 of the GGUF file, as in the blob's name
	KeyAdapters   = "adapters"   // SHA-256 of each adapter, separated by commas
	KeyCacheType  = "cache_type" // such as f16; K's and V's where they differ, as in q8_0/f16
	KeyShape      = "shape"      // under llama-server: SHA-256 of the shape of a slot's file
	KeyEngine     = "engine"
	KeyNumerics   = "numerics"
	KeyPageTokens = "page_tokens"
	KeyNamespace  = "namespace"
)

// Fingerprint is the SHA-256 of the identity's keys and values, each with its length, in the
// order of the keys.
func Fingerprint(identity map[string]string) pagefile.Key {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(identity)) {
		value := identity[key]
		fmt.Fprintf(h, "%d:%s=%d:%s;", len(key), key, len(value), value)
	}
	return pagefile.Key(h.Sum(nil))
}
