package page

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// readLimit bounds one read of the state.
const readLimit = 3 * time.Second

// serveState answers with the state as JSON, or with 503 and {"error": reason}.
func serveState(w http.ResponseWriter, r *http.Request, read func(context.Context) (telemetry.State, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	w.Header().Set("Content-Type", "application/json")
	state, err := read(ctx)
	var body []byte
	if err == nil {
		body, err = json.Marshal(state.WithWords(nil))
	}
	if err != nil { // the error names paths
		w.WriteHeader(http.StatusServiceUnavailable)
		body = []byte(`{"error":"The collector's state could not be read. kvtier doctor looks for the cause."}`)
	}
	_, _ = w.Write(body) // an error means that the client has gone
}
