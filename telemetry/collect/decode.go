package collect

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/kvtier/kvtier/telemetry"
)

// Bounds of a report besides those of package telemetry.
const (
	tiersMax  = 8
	memoryMax = 64
)

// wire is a report whose lists are not decoded yet: a list of a million empty objects would
// take a hundred times its length in memory.
type wire struct {
	telemetry.Report
	Tiers   json.RawMessage `json:"tiers"`
	Slots   json.RawMessage `json:"slots"`
	Memory  json.RawMessage `json:"memory"`
	Prompts json.RawMessage `json:"prompts"`
	Busters json.RawMessage `json:"busters"`
}

// decodeReport decodes a report and checks it against the bounds. Series that this build does
// not know are left out.
func decodeReport(data []byte) (*telemetry.Report, error) {
	var w wire
	if err := json.Unmarshal(data, &w); err != nil {
		return nil, fmt.Errorf("decode the report: %w", err)
	}
	r := &w.Report
	if r.Version != telemetry.Version {
		return nil, fmt.Errorf("the report has version %d, and this collector reads version %d", r.Version, telemetry.Version)
	}
	var err error
	if r.Tiers, err = decodeList[telemetry.Tier]("tiers", w.Tiers, tiersMax); err != nil {
		return nil, err
	}
	if r.Slots, err = decodeList[telemetry.Slot]("slots", w.Slots, telemetry.SlotsMax); err != nil {
		return nil, err
	}
	if r.Memory, err = decodeList[telemetry.Memory]("memory", w.Memory, memoryMax); err != nil {
		return nil, err
	}
	if r.Prompts, err = decodeList[telemetry.Prompt]("prompts", w.Prompts, telemetry.PromptsMax); err != nil {
		return nil, err
	}
	if r.Busters, err = decodeList[telemetry.Buster]("busters", w.Busters, telemetry.BustersMax); err != nil {
		return nil, err
	}
	if err := checkReport(r); err != nil {
		return nil, fmt.Errorf("check the report: %w", err)
	}
	return r, nil
}

// decodeList decodes a list of at most countMax values. The result is never nil.
func decodeList[T any](what string, data json.RawMessage, countMax int) ([]T, error) {
	list := []T{}
	if len(data) == 0 || bytes.Equal(data, []byte("null")) {
		return list, nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if begin, err := d.Token(); err != nil || begin != json.Delim('[') {
		return nil, fmt.Errorf("decode the report: %s is not a list", what)
	}
	for d.More() {
		if len(list) == countMax {
			return nil, fmt.Errorf("the report has more than %d %s", countMax, what)
		}
		var value T
		if err := d.Decode(&value); err != nil {
			return nil, fmt.Errorf("decode the report: %s: %w", what, err)
		}
		list = append(list, value)
	}
	return list, nil
}
