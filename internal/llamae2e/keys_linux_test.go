package llamae2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// TestKeys: conversations come back under a server that asks for a key, and a client without the
// key is refused as by the stock server.
func TestKeys(t *testing.T) {
	o := llamatest.Options{Model: aModel(t, testmodel.Shape{Arch: "llama"}), Args: strings.Fields("-c 2048 -np 1 --api-key other,right")}
	ask := func(s *server, key string) (int, []byte) {
		body, err := json.Marshal(map[string]any{"prompt": someTokens(1, 600), "n_predict": 3, "temperature": 0})
		require.NoError(t, err)
		req, err := http.NewRequest(http.MethodPost, s.URL+"/completion", bytes.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := llamatest.Client.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, b
	}
	s := start(t, o)
	stock, refusal := ask(s, "wrong")
	require.Equal(t, http.StatusUnauthorized, stock)
	s.Kill()

	o.Root = filepath.Join(t.TempDir(), "pages")
	s = start(t, o)
	status, _ := ask(s, "right")
	require.Equal(t, http.StatusOK, status)
	s.Kill()
	s = start(t, o)
	status, body := ask(s, "wrong")
	require.Equal(t, stock, status)
	require.Equal(t, string(refusal), string(body))
	status, body = ask(s, "right")
	require.Equal(t, http.StatusOK, status)
	var a answer
	require.NoError(t, json.Unmarshal(body, &a))
	require.Greater(t, a.Timings.Cached, 500)
}
