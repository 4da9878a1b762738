package tierenv

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/kvtier/kvtier/internal/env"
)

// Variables whose values can keep tiering off.
const (
	TieringVariable  = "OLLAMA_KV_TIERING"
	LocalVariable    = "OLLAMA_KV_TIER_LOCAL" // names the directory of the local tier
	LocalGBVariable  = "OLLAMA_KV_TIER_LOCAL_GB"
	RemoteVariable   = "OLLAMA_KV_TIER_REMOTE"
	RemoteGBVariable = "OLLAMA_KV_TIER_REMOTE_GB"
	InstanceVariable = "OLLAMA_KV_INSTANCE_ID"
)

// BadValue is the value of a variable that keeps tiering off.
type BadValue struct {
	Variable, Value string
	Says            string // such as "is not an absolute path"
	Example         string // of a value that can be used
}

func (b BadValue) Error() string { return fmt.Sprintf("%s=%q %s", b.Variable, b.Value, b.Says) }

// InstancesDir is the directory of servers with an id, below OLLAMA_KV_TIER_LOCAL.
const InstancesDir = "instances"

// instanceID matches names that are one element of a path on every system.
var instanceID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

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
	for _, budget := range []struct {
		bytes    *int64
		variable string
		unset    int64
	}{
		{&c.LocalBytes, LocalGBVariable, DefaultLocalBytes},
		{&c.RemoteBytes, RemoteGBVariable, 0},
		{&c.RAMBytes, ramGBVariable, 0},
		{&c.WriteBytesPerDay, "OLLAMA_KV_TIER_WRITE_GB_PER_DAY", 0},
	} {
		var ok bool
		if *budget.bytes, ok = env.ParseGigabytes(value(budget.variable), budget.unset); !ok {
			refuse(budget.variable, "is not a number of gigabytes", "20")
		}
	}
	var err error
	if c.Split, err = splitOf(value); err != nil {
		refuse(SplitVariable, "cannot be used: "+err.Error(), "25,25,50")
	}
	c.Local, c.Remote = cmp.Or(value(LocalVariable), local), value(RemoteVariable)
	for _, variable := range []string{LocalVariable, RemoteVariable} {
		if path := value(variable); path != "" && !filepath.IsAbs(path) {
			refuse(variable, "is not an absolute path", "/var/lib/ollama-kv")
		}
	}
	switch c.Instance = value(InstanceVariable); {
	case c.Instance == "":
	case !instanceID.MatchString(c.Instance):
		refuse(InstanceVariable, "is not a name of 1 to 64 letters, digits, dots, hyphens and underscores that begins with a letter or a digit", "gpu0")
	case c.Local != "":
		c.Local = filepath.Join(c.Local, InstancesDir, c.Instance)
	}
	return c, on, bad
}
