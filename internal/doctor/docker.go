package doctor

import (
	"context"
	"encoding/json"
	"strings"
)

// container is a part of the output of docker inspect.
type container struct {
	Name   string
	Path   string
	Args   []string
	State  struct{ Pid int }
	Mounts []struct{ Source, Destination string }
	Config struct {
		Image string
		User  string
		Env   []string
	}
}

func (c container) ollama() bool {
	return strings.Contains(c.Config.Image, "ollama") || strings.Contains(c.Path+" "+strings.Join(c.Args, " "), "ollama")
}

// containers asks Docker for containers that run Ollama, where Docker is there.
func containers(ctx context.Context, e Environment) []server {
	if _, err := e.Find("docker"); err != nil {
		return nil
	}
	out, err := e.Run(ctx, "docker", "ps", "--quiet", "--no-trunc")
	ids := strings.Fields(out)
	if err != nil || len(ids) == 0 {
		return nil // Docker is not running, or not ours
	}
	const idsMax = 64
	out, err = e.Run(ctx, "docker", append([]string{"inspect"}, ids[:min(len(ids), idsMax)]...)...)
	if err != nil {
		return nil
	}
	var all []container
	if json.Unmarshal([]byte(out), &all) != nil {
		return nil
	}
	var list []server
	for _, c := range all {
		if !c.ollama() {
			continue
		}
		s := server{
			kind: byDocker, name: strings.TrimPrefix(c.Name, "/"), pid: c.State.Pid, image: c.Config.Image,
			set: variablesIn(strings.Join(c.Config.Env, "\x00"), "\x00"), volumes: make(map[string]string),
			user: Account{UID: -1, Name: c.Config.User, Home: "/root"},
		}
		if c.Config.User == "" || c.Config.User == "root" {
			s.user = Account{UID: 0, Name: "root", Home: "/root"}
		}
		for _, m := range c.Mounts {
			s.volumes[m.Destination] = m.Source
		}
		list = append(list, s)
	}
	return list
}

// host returns the place on this machine of a container's path, "" if it is in no volume.
func (s server) host(name string) string {
	best, found := "", ""
	for inside, outside := range s.volumes {
		if within(name, inside) && len(inside) > len(best) {
			best, found = inside, outside+strings.TrimPrefix(name, inside)
		}
	}
	return found
}
