{{/* An object of the base, changed as the values ask for. Nothing, where they switch it off. */}}
{{- define "ringcast.change" -}}
{{- $object := .object -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $kind := $object.kind -}}
{{- $name := $object.metadata.name -}}
{{- $of_agents := has $name (list "heartbeat-agent" "consumer" "monitor-of-agents") -}}
{{- $of_database := and (eq $kind "NetworkPolicy") (eq $name "database") -}}
{{- $off := or (and $of_agents (not $values.heartbeatAgent.enabled)) (and (eq $kind "NetworkPolicy") (not $values.networkPolicies.enabled)) (and $of_database (gt (len $values.database.cidrs) 0)) -}}
{{- if not $off -}}
{{- $labels := dict "app.kubernetes.io/part-of" "ringcast" "app.kubernetes.io/managed-by" $root.Release.Service "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version) -}}
{{- if eq $object.apiVersion "monitoring.coreos.com/v1" -}}{{- $labels = merge $labels $values.monitoring.labels -}}{{- end -}}
{{- $_ := set $object.metadata "namespace" $root.Release.Namespace -}}
{{- $_ := set $object.metadata "labels" (merge $labels ($object.metadata.labels | default dict)) -}}
{{- if and (eq $kind "Deployment") (eq $name "config-service") -}}
{{- include "ringcast.pod" (dict "object" $object "values" $values.configService "root" $root) -}}
{{- with $values.configService.replicas -}}{{- $_ := set $object.spec "replicas" . -}}{{- end -}}
{{- else if and (eq $kind "DaemonSet") (eq $name "heartbeat-agent") -}}
{{- include "ringcast.pod" (dict "object" $object "values" $values.heartbeatAgent "root" $root) -}}
{{- else if and (eq $kind "StatefulSet") (eq $name "nats") -}}
{{- include "ringcast.pod" (dict "object" $object "values" $values.nats "root" $root) -}}
{{- $claim := (index $object.spec.volumeClaimTemplates 0).spec -}}
{{- with $values.nats.storageClass -}}{{- $_ := set $claim "storageClassName" . -}}{{- end -}}
{{- with $values.nats.storage -}}{{- $_ := set $claim.resources.requests "storage" . -}}{{- end -}}
{{- $_ := set $object.spec.template.metadata "annotations" (dict "checksum/config" (include "ringcast.nats-config" $root | sha256sum)) -}}
{{- else if and (eq $kind "NetworkPolicy") (eq $name "config-service") -}}
{{- $rule := last $object.spec.egress -}}
{{- $_ := set (index $rule.ports 0) "port" $values.database.port -}}
{{- with $values.database.cidrs -}}
{{- $to := list -}}
{{- range . -}}{{- $to = append $to (dict "ipBlock" (dict "cidr" .)) -}}{{- end -}}
{{- $_ := set $rule "to" $to -}}
{{- end -}}
{{- else if $of_database -}}
{{- $_ := set (index (index $object.spec.ingress 0).ports 0) "port" $values.database.port -}}
{{- end -}}
{{- toYaml $object -}}
{{- end -}}
{{- end -}}

{{/* Changes the pod of a workload; prints nothing. */}}
{{- define "ringcast.pod" -}}
{{- $pod := .object.spec.template.spec -}}
{{- $container := index $pod.containers 0 -}}
{{- with .values.image -}}{{- $_ := set $container "image" . -}}{{- end -}}
{{- with .values.resources -}}{{- $_ := set $container "resources" . -}}{{- end -}}
{{- with .values.extraArgs -}}{{- $_ := set $container "args" (concat $container.args .) -}}{{- end -}}
{{- with .values.nodeSelector -}}{{- $_ := set $pod "nodeSelector" . -}}{{- end -}}
{{- with .values.tolerations -}}{{- $_ := set $pod "tolerations" . -}}{{- end -}}
{{- with .root.Values.imagePullSecrets -}}{{- $_ := set $pod "imagePullSecrets" . -}}{{- end -}}
{{- end -}}

{{/* The files of the NATS servers, by name. */}}
{{- define "ringcast.nats-config" -}}
{{- $data := dict -}}
{{- range $path, $_ := .Files.Glob "nats/*.conf" -}}
{{- $_ := set $data (base $path) ($.Files.Get $path) -}}
{{- end -}}
{{- with .Values.nats.accounts -}}{{- $_ := set $data "accounts.conf" . -}}{{- end -}}
{{- toYaml $data -}}
{{- end -}}
