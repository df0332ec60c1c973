SELECT customer, count(*) AS orders, sum(amount) AS total
FROM {{ source('lake', 'orders') }}
GROUP BY customer
