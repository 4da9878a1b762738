package promtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// program returns the path of prometheus or promtool.
func program(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path, err := filepath.Abs(filepath.Join(root, "build/prometheus/usr/bin", name))
	require.NoError(t, err)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	const missing = "%s is not installed; scripts/deps test unpacks Debian's, elsewhere install Prometheus"
	if os.Getenv("CI") == "true" {
		t.Fatalf(missing, name)
	}
	t.Skipf(missing, name)
	return ""
}

// promtool runs promtool on a text and requires that it finds nothing.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "promtool"), args...)
	cmd.Stdin = bytes.NewBufferString(stdin)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "promtool %v: %s", args, out)
}

// prometheus is a running Prometheus.
type prometheus struct {
	url string
	log *bytes.Buffer // to be read after its end
}

// startPrometheus runs Prometheus in a folder of its own until the test ends. targets are
// addresses by job.
func startPrometheus(t *testing.T, targets map[string]string) *prometheus {
	t.Helper()
	path := program(t, "prometheus")
	dir := t.TempDir()
	rules, err := filepath.Abs(alertsFile)
	require.NoError(t, err)
	config := "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\nrule_files: ['" + rules + "']\nscrape_configs:\n"
	for job, address := range targets {
		config += fmt.Sprintf("- {job_name: %s, static_configs: [{targets: ['%s']}]}\n", job, address)
	}
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))

	ctx, cancel := context.WithCancel(t.Context())
	if deadline, ok := t.Deadline(); ok { // a test that is cut off leaves no process
		ctx, cancel = context.WithDeadline(t.Context(), deadline.Add(-10*time.Second))
	}
	address := freeAddress(t)
	p := &prometheus{url: "http://" + address, log: new(bytes.Buffer)}
	cmd := exec.CommandContext(ctx, path, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--storage.tsdb.retention.time=1h")
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = p.log, p.log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // killed
		http.DefaultClient.CloseIdleConnections()
		if t.Failed() {
			t.Logf("Prometheus: %s", p.log)
		}
	})
	return p
}

// freeAddress is a port that nothing listens on. Prometheus names no port that the system chose.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// series is one result of a query.
type series struct {
	Metric map[string]string
	Value  [2]any // time, and the number as text
}

func (s series) number() string { return fmt.Sprint(s.Value[1]) }

// query runs one query. The error is that of Prometheus, such as of its syntax.
func (p *prometheus) query(ctx context.Context, expr string) ([]series, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     []series // of a vector
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: status %d: %w", expr, resp.StatusCode, err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: Prometheus refuses it: %s", expr, answer.Error)
	}
	if answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("%s is a %s", expr, answer.Data.ResultType)
	}
	return answer.Data.Result, nil
}
