package machine

import (
	"context"
	"encoding/json"
	"path"
	"strings"
)

// container is a part of the output of docker inspect.
type container struct {
	Name   string
	Path   string
	State  struct{ Pid int }
	Mounts []struct{ Source, Destination string }
	Config struct {
		Image string
		User  string
		Env   []string
	}
}

// Containers asks Docker for containers that run Ollama, where Docker is there.
func Containers(ctx context.Context, s System) (list []Server) {
	if _, err := s.Find("docker"); err != nil {
		return nil
	}
	out, err := s.Run(ctx, nil, "docker", "ps", "--quiet", "--no-trunc")
	ids := strings.Fields(out)
	if err != nil || len(ids) == 0 {
		return nil // Docker is not running, or not ours
	}
	const idsMax = 64
	// The error may be about a container that has ended meanwhile; the others are in the output.
	out, _ = s.Run(ctx, nil, "docker", append([]string{"inspect"}, ids[:min(len(ids), idsMax)]...)...)
	var all []container
	if json.Unmarshal([]byte(out), &all) != nil {
		return nil
	}
	for _, c := range all {
		if !strings.Contains(c.Config.Image, "ollama") && path.Base(c.Path) != "ollama" { // an argument may name one, too
			continue
		}
		o := Server{
			Kind: ByDocker, Name: strings.TrimPrefix(c.Name, "/"), PID: c.State.Pid, Image: c.Config.Image,
			Set: variablesIn(strings.Join(c.Config.Env, "\x00"), "\x00"), Volumes: make(map[string]string),
			User: Account{UID: -1, Name: c.Config.User, Home: "/root"},
		}
		if c.Config.User == "" || c.Config.User == "root" {
			o.User = Account{UID: 0, Name: "root", Home: "/root"}
		}
		for _, m := range c.Mounts {
			o.Volumes[m.Destination] = m.Source
		}
		list = append(list, o)
	}
	return list
}
