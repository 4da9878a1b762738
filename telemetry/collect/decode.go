package collect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/kvtier/kvtier/telemetry"
)

// Bounds besides those of package telemetry. Root reads files of other users.
const (
	tokensMax       = 48 << 10 // of JSON in a report: a million empty objects would take a hundred times their length
	totalsTokensMax = 3 * telemetry.ModelsMax * telemetry.SeriesMax
	tiersMax        = 8
	memoryMax       = 64
	totalMax        = 1e18  // of one process; doubles count up to 2^53 exactly
	sumMax          = 1e300 // JSON has no infinity
)

var (
	// errContent reports a file whose content cannot be used.
	errContent = errors.New("its content cannot be used")
	// errVersion reports a file that another version of the program can use.
	errVersion = errors.New("another version of kvtier wrote it")
)

func decode(data []byte, tokens int, to any) error {
	err := checkTokens(data, tokens)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err == nil {
		_, err = json.Marshal(to) // there are times that are read and cannot be written
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errContent, err)
	}
	return nil
}

// checkTokens refuses too many tokens, and texts that a reader may not show.
func checkTokens(data []byte, most int) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // Unmarshal reads no number of a field that it does not know, however large
	for range most {
		token, err := d.Token()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if text, ok := token.(string); ok && !isShown(text) {
			return fmt.Errorf("a text has control characters or more than %d bytes", telemetry.NameBytesMax)
		}
	}
	return fmt.Errorf("it has more than %d values", most)
}

func isShown(text string) bool {
	return len(text) <= telemetry.NameBytesMax && strings.IndexFunc(text, unicode.IsControl) < 0
}

func decodeReport(data []byte) (*report, error) {
	r := new(report)
	if err := decode(data, tokensMax, r); err != nil {
		return nil, err
	}
	engine := r.Process.Engine
	switch {
	case r.Version != telemetry.Version:
		return nil, fmt.Errorf("%w: it has version %d, and this program reads version %d", errVersion, r.Version, telemetry.Version)
	case r.Process.PID <= 0, engine != telemetry.EngineOllama && engine != telemetry.EngineLlama:
		return nil, fmt.Errorf("%w: it is of no process", errContent)
	}
	for series, total := range r.Totals {
		if !(total >= 0 && total <= totalMax) {
			return nil, fmt.Errorf("%w: %s is %g", errContent, series, total)
		}
	}
	withoutPrivateWords(r.Prompts)
	if u := r.Unstored; u != nil && !u.Cause.Known() {
		u.Cause = telemetry.ObstacleOther // of a newer program
	}
	return r, nil
}
