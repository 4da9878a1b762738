package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier/sealed"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/remote"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// engine is the remote tier of a store that is no directory.
type engine struct {
	asked  bool
	health remote.Health
	err    error
	key    machine.File // the key file
	keyErr error
}

// askEngine asks the engine of a store what its server asks, with the server's credentials. That of another user's
// process is not asked: root must not speak where somebody else points to. Of a container only it knows the network.
func (s *scene) askEngine(a *asker, e Environment, st store) *engine {
	o, known := s.owner(st)
	found := new(engine)
	wrong := slices.ContainsFunc(st.bad, func(b tierenv.BadValue) bool { return b.Variable == remoteVar || b.Variable == keyFileVar })
	if wrong || o.as != "" || o.Kind == machine.ByDocker {
		return found
	}
	variables := o.Variables()
	if !known || o.User.UID == s.user.UID && value(variables, "AWS_ACCESS_KEY_ID") == "" {
		variables = nil // this user's own, and files
	}
	c := st.Config
	ask(a, c.Remote, func(ctx context.Context) engine {
		n := engine{asked: true}
		if c.KeyFile != "" {
			n.key, n.keyErr = e.Stat(c.KeyFile)
		}
		n.health, n.err = e.Engine(ctx, c, variables)
		return n
	}, func(n engine) { *found = n })
	return found
}

var engineChecks = []Check{
	{
		ID: "engine-off", Severity: Error, Title: "The engine of the remote tier cannot be used",
		Matters: "Its pages are not read and none is stored there; without a usable address and key file nothing is stored at all.",
		Means:   "The address, the credentials, the key file or the network is wrong, or the engine is away: a server leaves it alone, and tries again within a minute. Credentials in another user's files are not read here.",
		Remedy:  "{edit}  # what the evidence names: docs/team.md",
		judge: func(s *scene, found func(hit)) {
			s.eachEngine(func(st store, n *engine) {
				o := s.by(st)
				switch {
				case s.othersKey(st, n):
				case n.err != nil && !errors.Is(n.err, sealed.ErrOtherKey):
					found(s.engineHit(st, n.err.Error(), "The engine %s cannot be used.", st.Remote))
				case n.keyErr == nil && n.key.UID >= 0 && o.User.UID > 0 && n.key.UID != o.User.UID && n.key.Mode&0o044 == 0:
					h := s.engineHit(st, fmt.Sprintf("it belongs to user %d", n.key.UID), "%s may not read the key file %s.", o.title(), st.KeyFile)
					h.remedy = "sudo chown {user} {key}"
					found(h)
				}
			})
		},
	},
	{
		ID: "engine-key", Severity: Error, Title: "What is in the engine was sealed with another key",
		Matters: "Nothing is stored there.",
		Means:   "Another team uses this address, or the key was changed, and the former one is not the second line of the file.",
		Remedy:  "sudo sha256sum {key}  # the same on all machines?",
		judge: func(s *scene, found func(hit)) {
			s.eachEngine(func(st store, n *engine) {
				if errors.Is(n.err, sealed.ErrOtherKey) {
					found(s.engineHit(st, st.KeyFile, "No key of %s opens the ledger in %s.", st.KeyFile, st.Remote))
				}
			})
		},
	},
	{
		ID: "engine-uncollected", Severity: Warning, Title: "The engine ignores conditional requests",
		Matters: "No server removes pages there: a budget only keeps new ones away.",
		Means:   "Without `If-None-Match` and `If-Match` on PUT, as in Garage, one collector cannot be told from two. Let a rule of the bucket expire objects: docs/team.md.",
		Remedy:  "aws s3api get-bucket-lifecycle-configuration --bucket BUCKET --endpoint-url ENDPOINT",
		judge: func(s *scene, found func(hit)) {
			s.eachEngine(func(st store, n *engine) {
				if n.health.Unconditional {
					found(s.engineHit(st, "a PUT whose condition does not hold succeeds", "%s ignores conditional requests.", st.Remote))
				}
			})
		},
	},
}

// eachEngine calls fn for each engine that was asked.
func (s *scene) eachEngine(fn func(st store, n *engine)) {
	for _, st := range s.stores {
		if st.engine != nil && st.engine.asked {
			fn(st, st.engine)
		}
	}
}

func (s *scene) engineHit(st store, value, format string, args ...any) hit {
	o := s.by(st)
	edit := "export " + remoteVar + "=ADDRESS"
	if o.Kind == machine.BySystemd {
		edit = "sudo systemctl edit " + machine.Quote(o.Name)
	}
	return hit{
		says: fmt.Sprintf(format, args...), evidence: []Evidence{{st.Remote, value}},
		values: []string{"{edit}", edit, "{key}", machine.Quote(st.KeyFile), "{user}", machine.Quote(o.User.Name)},
	}
}

// othersKey reports a key file of another user's, which this one may not read.
func (s *scene) othersKey(st store, n *engine) bool {
	var path *fs.PathError
	return errors.As(n.err, &path) && errors.Is(path, fs.ErrPermission) && path.Path == st.KeyFile && s.by(st).User.UID != s.user.UID
}

// unasked is the finding about an engine that somebody else has to ask.
func (s *scene) unasked(st store) (h hit, ok bool) {
	n := st.engine
	if n == nil || n.asked && !s.othersKey(st, n) || slices.Contains(s.slow, st.Remote) {
		return h, false
	}
	h = s.engineHit(st, "not asked", "The engine %s was not asked.", st.Remote)
	switch o := s.by(st); {
	case o.Kind == machine.ByDocker:
		h.remedy = "docker exec {name} kvtier doctor"
		h.values = append(h.values, "{name}", machine.Quote(o.Name))
	case o.as != "":
		h.remedy = o.as + "kvtier doctor"
	}
	return h, true
}

// answers says how quick an engine is.
func (n *engine) answers() string {
	if !n.asked || n.err != nil {
		return ""
	}
	return fmt.Sprintf(", answers in %v", n.health.RoundTrip.Round(10*time.Microsecond))
}
