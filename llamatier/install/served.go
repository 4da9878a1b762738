package install

import (
	"cmp"
	"context"
	"strings"
)

// Served is a service that has our llama-server.
type Served struct {
	Service   string
	User      string            // who runs it, "" if it is not known
	Variables map[string]string // of the tiers, and OLLAMA_MODELS
}

// Changed names the service that kvtier is installed for, "" unless there is exactly one.
func (m *Machine) Changed() string {
	if services := m.Units.changed(); len(services) == 1 {
		return services[0]
	}
	return ""
}

// Served returns the service that kvtier is installed for, if there is exactly one.
func (m *Machine) Served(ctx context.Context) (Served, bool) {
	s := Served{Service: m.Changed(), Variables: make(map[string]string)}
	ours, _, err := m.Units.read(s.Service)
	if s.Service == "" || err != nil {
		return Served{}, false
	}
	u, err := m.unit(ctx, s.Service) // with the variables of other drop-ins
	if err == nil {
		s.User = cmp.Or(u.Props["User"], "root")
	}
	for _, set := range []map[string]string{ours, u.Variables} {
		for name, value := range set {
			if strings.HasPrefix(name, "OLLAMA_KV_") || name == "OLLAMA_MODELS" {
				s.Variables[name] = value
			}
		}
	}
	return s, true
}
